"""Lowered functions as source text."""

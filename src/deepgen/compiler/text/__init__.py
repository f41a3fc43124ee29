"""Lowered functions as source code."""

"""Softmax in portable C, for any processor."""

"""Operators with words of their own, each told by an expression."""

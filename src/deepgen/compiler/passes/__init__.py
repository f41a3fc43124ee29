"""Lowers an expression and a schedule to loops, statements and buffers, by a sequence of passes."""

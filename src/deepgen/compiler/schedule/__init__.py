"""Schedules: the loops of an expression, and the steps that rearrange them."""

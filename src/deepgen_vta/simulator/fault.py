"""What a program did wrong."""

from __future__ import annotations


class ProgramFault(Exception):
    """A program that hangs or races. Never shown to a user: it becomes a verdict."""

"""Errors meant for the user. The command line prints the message and exits with the error's code."""

from __future__ import annotations

# `deepgen` on PyPI is another project. Only the distribution has this name: the module and the command are `deepgen`.
DISTRIBUTION = "deepgen-kernels"


def install_extra(extra: str) -> str:
    """How to install one of deepgen's extras, as a remedy."""
    return f"In a checkout: pip install -e '.[{extra}]'. Once published: pip install '{DISTRIBUTION}[{extra}]'."


class DeepgenError(Exception):
    """An error that a user can understand; the message is one or two clear sentences."""

    exit_code = 1


class BadInput(DeepgenError):
    """The user's input cannot be used: a word, a file, a key, a value."""

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, allowed: str | None = None) -> None:
        self.what, self.where, self.allowed = what, where, allowed
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message} ({allowed})" if allowed else message)


class Missing(DeepgenError):
    """A tool, library or device is missing; the message says what that prevents and how to get it."""

    def __init__(self, what: str, *, blocks: str, remedy: str) -> None:
        self.what, self.blocks, self.remedy = what, blocks, remedy
        super().__init__(f"{what} is missing: {blocks}. {remedy}")

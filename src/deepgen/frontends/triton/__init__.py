"""Triton's own tuning interface, backed by deepgen."""

from __future__ import annotations

from deepgen.frontends.triton.decorator import autotune

__all__ = ["autotune"]

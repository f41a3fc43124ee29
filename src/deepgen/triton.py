"""Triton's own ways of tuning, with deepgen behind them."""

from __future__ import annotations

from deepgen.frontends.triton import autotune

__all__ = ["autotune"]

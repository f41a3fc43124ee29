"""Tensors that kernels are tried and timed on."""

from __future__ import annotations

from typing import Any

import torch

_MOVED = 64 << 20  # bytes of a tensor that is copied for a race
# Subclasses have their own meaning of every call.
PLAIN = (torch.Tensor, torch.nn.Parameter)


def elsewhere(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same at other addresses, as they are from layer to layer. What is large stays, and so do views in which one
    element stands for several: they cannot be written.
    """
    return tuple(_moved(arg) if isinstance(arg, torch.Tensor) and _movable(arg) else arg for arg in args)


def _movable(tensor: Any) -> bool:
    return bool(tensor.nbytes <= _MOVED) and 0 not in tensor.stride()


def _moved(tensor: Any) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def made_real(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors with memory in place of a compiler's, which have none: kinds of calls are tried on them."""
    return tuple(_real(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)


def _real(tensor: Any) -> Any:
    if type(tensor) in PLAIN:
        return tensor.detach()
    # A generator of its own: what the caller draws at random stays as it was.
    chance = torch.Generator(tensor.device).manual_seed(0)
    wide = torch.randn(tensor.shape, generator=chance, device=tensor.device)
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(wide)

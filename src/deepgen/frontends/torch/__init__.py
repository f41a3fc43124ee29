"""deepgen for torch: a library's kernels in place of torch's functions, and what a model spends its time on.

import deepgen.torch
with deepgen.torch.use(library):
    model(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary.errors import Missing, install_extra

try:
    import torch as _torch
except ImportError as _error:
    raise Missing("torch", blocks="deepgen.torch cannot be used", remedy=install_extra("torch")) from _error

from deepgen.frontends.torch.ops import OPS
from deepgen.frontends.torch.recording import record
from deepgen.frontends.torch.using import Use, patch, use

if TYPE_CHECKING:
    from deepgen.frontends.torch.optimizing import Optimized
    from deepgen.frontends.torch.tracing import Traced
    from deepgen.libraries import Library

linear, mm, bmm, matmul, addmm = OPS.linear, OPS.mm, OPS.bmm, OPS.matmul, OPS.addmm

__all__ = ["Use", "addmm", "bmm", "linear", "matmul", "mm", "optimize", "patch", "record", "traced", "use"]


def traced(module: Callable[..., Any], *inputs: Any) -> Traced:
    """The operator that a module, or a function of tensors, computes for such inputs: pass its `operator` to dg.tune.

    Raises BadInput if there is none.
    """
    from deepgen.frontends.torch import tracing

    return tracing.traced(module, *inputs)


def optimize(model: _torch.nn.Module, library: Library, *, race: bool = True) -> Optimized:
    """Let a library's kernels serve one model's calls, and its patterns of several calls, such as a gated MLP.

    The model is changed in place, until `close` is called on the result. As in `use`, a kernel serves where it is
    faster than torch, and torch serves everything else, such as calls with gradients.
    """
    from deepgen.frontends.torch import optimizing

    return optimizing.Optimized(model, library, race=race)

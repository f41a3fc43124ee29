"""deepgen for torch: a library's kernels in place of torch's functions, and what a model spends its time on.

import deepgen.torch
with deepgen.torch.use(library):
    model(x)
"""

from __future__ import annotations

from deepgen.frontends.torch import Use, addmm, bmm, linear, matmul, mm, optimize, patch, record, traced, use

__all__ = ["Use", "addmm", "bmm", "linear", "matmul", "mm", "optimize", "patch", "record", "traced", "use"]

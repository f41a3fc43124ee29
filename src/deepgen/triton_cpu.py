"""Triton kernels on this machine's processor: after this import, `kernel[grid](...)` runs there.

import deepgen.triton_cpu

Tensors are torch's on the CPU, or numpy's arrays. No GPU is needed; where there is one, this import comes before it.
"""

from __future__ import annotations

from deepgen.vocabulary.registry import DOORS

activate = DOORS.get("triton_cpu")
activate()

__all__ = ["activate"]

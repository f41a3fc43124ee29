"""Triton kernels on this machine's CPU: after this import, `kernel[grid](...)` runs there.

import deepgen.triton_cpu

Tensors are torch's on the CPU, or numpy's arrays. No GPU is needed; if there is one, this import takes precedence.
"""

from __future__ import annotations

from deepgen.vocabulary.registry import DOORS

activate = DOORS.get("triton_cpu")
activate()

__all__ = ["activate"]

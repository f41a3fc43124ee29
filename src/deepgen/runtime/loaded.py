"""Loading a kernel into this process."""

from __future__ import annotations

from pathlib import Path

from deepgen.build import build_once
from deepgen.operators import Operator
from deepgen.runtime.calling import Loaded
from deepgen.runtime.devices import CpuDevice, Device, GpuDevice
from deepgen.runtime.gpu_driver import APIS
from deepgen.runtime.quick import QuickNumpy, QuickTorch, is_two_to_one
from deepgen.targets import Target
from deepgen.vocabulary import DeepgenError, Kernel

__all__ = ["Loaded", "load"]


def load(kernel: Kernel, operator: Operator, target: Target, binary: Path | None = None) -> Loaded:
    """Load a kernel into this process, building it when there is no binary."""
    if kernel.language != "c" and kernel.language not in APIS:
        raise DeepgenError(f"kernels in {kernel.language} for {target.name} cannot be called from this process")
    at = binary or Path(build_once(kernel, target).binary)
    device: Device = CpuDevice(kernel, at) if kernel.language == "c" else GpuDevice(kernel, at)
    if not is_two_to_one(operator):
        return Loaded(kernel, operator, device)
    if isinstance(device, GpuDevice):
        return QuickTorch(kernel, operator, device)
    return QuickNumpy(kernel, operator, device)

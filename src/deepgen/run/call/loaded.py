"""Loading a kernel into this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deepgen.operators import Operator
from deepgen.run.call.calling import Loaded
from deepgen.run.call.devices import CpuDevice, Device, GpuDevice
from deepgen.run.call.quick import QuickNumpy, QuickTorch, is_two_to_one
from deepgen.targets import Target
from deepgen.targets.gpu_driver import APIS
from deepgen.toolchains import build_once
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, completed

__all__ = ["Loaded", "load"]


def load(
    kernel: Kernel,
    operator: Operator,
    target: Target,
    binary: Path | None = None,
    plan: LaunchPlan | None = None,
    requires: tuple[tuple[str, str], ...] = (),
) -> Loaded:
    """Load a kernel into this process, building it when there is no binary; `plan`: as the build completed it;
    `requires`: what a shape must satisfy beyond the plan's own requirements."""
    api = APIS.get(target.languages[0])
    if api is None and (target.runner != "cpu" or kernel.language not in target.languages):
        raise DeepgenError(f"kernels in {kernel.language} for {target.name} cannot be called from this process")
    if binary is None:
        built = build_once(kernel, target)
        binary, plan = Path(built.binary), built.plan
    kernel = completed(kernel, plan)
    if requires:
        kernel = replace(kernel, plan=replace(kernel.plan, requires=(*kernel.plan.requires, *requires)))
    device: Device = CpuDevice(kernel, binary) if api is None else GpuDevice(kernel, binary, api)
    if not is_two_to_one(operator):
        return Loaded(kernel, operator, device)
    if isinstance(device, GpuDevice):
        return QuickTorch(kernel, operator, device)
    return QuickNumpy(kernel, operator, device)

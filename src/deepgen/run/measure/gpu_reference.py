"""The operator's own reference kernel on the device, trusted after numpy has checked some of its elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deepgen.operators import Answer, Array, Operator, Tensor, Tolerance
from deepgen.operators.compare import compare
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.run.measure.base import Helper
from deepgen.run.measure.gpu_buffers import DeviceBuffer
from deepgen.targets.gpu_driver import Driver
from deepgen.vocabulary import TensorArg, WorkspaceArg
from deepgen.vocabulary.dtypes import dtype

SAMPLES = 1000
_SHARE = 0.01  # of the operator's tolerance that a reference may be off by; all of it where f64 is judged by f64
_SCALE_ERROR = Tolerance(1e-3, 1e-3)


class DeviceReference:
    """One operator's reference kernel, loaded."""

    def __init__(self, driver: Driver, helper: Helper) -> None:
        self._driver = driver
        self._kernel = GpuKernel.read(driver, helper.kernel, helper.binary)
        steps = (*helper.kernel.plan.prepare, *helper.kernel.plan.steps)
        self._names = {arg.tensor for step in steps for arg in step.args if isinstance(arg, TensorArg)}

    def scales_each(self, output: str) -> bool:
        """Whether it gives every element of an output a scale of its own."""
        return f"scale_{output}" in self._names

    def run(self, operator: Operator, addresses: Mapping[str, int]) -> None:
        """`addresses`: of the operator's tensors, and of what is to be written."""
        spaces: list[DeviceBuffer] = []

        def allocate(arg: WorkspaceArg, size: int) -> int:
            spaces.append(DeviceBuffer(self._driver, arg.name, size))
            return spaces[-1].start

        bound = self._kernel.bind(addresses, operator.scalars(), allocate)
        bound.prepare.run()
        bound.run.run()
        self._driver.synchronize()
        for space in spaces:
            space.close()

    def close(self) -> None:
        self._kernel.close()

    def doubt(
        self,
        operator: Operator,
        output: Tensor,
        inputs: Mapping[str, Array],
        want: DeviceBuffer,
        scale: DeviceBuffer,
        tolerance: Tolerance,
    ) -> str | None:
        """Where the device and numpy differ, in words: at the corners or at a thousand other elements."""
        places = sampled(output.shape)
        wide = dtype("i64" if output.dtype.integer else "f64")
        right = operator.reference_at(inputs, output.name, places)
        share = 1.0 if output.dtype.name == "f64" else _SHARE
        judged = {"value": (want, wide, right, Tolerance(share * tolerance.absolute, share * tolerance.relative))}
        if self.scales_each(output.name):
            sizes = np.broadcast_to(right.scale, places.shape).astype(np.float64)
            judged["scale"] = scale, dtype("f32"), Answer(sizes, sizes), _SCALE_ERROR
        for what, (buffer, of, answer, within) in judged.items():
            found = compare(buffer.some(places, of.numpy()), answer, of, within)
            if found.first is not None:
                index = ", ".join(str(int(i)) for i in np.unravel_index(places[found.first], output.shape))
                return f"the device's reference has another {what} at {output.name}[{index}] than numpy"
        return None


def sampled(shape: tuple[int, ...]) -> Array:
    """Flat places of elements: all of a small tensor, else the corners of each dimension and random others."""
    size = int(np.prod(shape, dtype=np.int64))
    if size <= SAMPLES:
        return np.arange(size)
    ends = np.meshgrid(*((0, length - 1) for length in shape), indexing="ij")
    corners = np.ravel_multi_index([end.reshape(-1) for end in ends], shape)
    return np.unique(np.concatenate([corners, np.random.default_rng(size).integers(0, size, SAMPLES)]))

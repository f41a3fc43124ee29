"""The operator's tensors on a device, filled from a seed, with the right answer beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deepgen.measure import handed
from deepgen.measure.bench import Rejected
from deepgen.measure.gpu_buffers import DeviceBuffer, DeviceTensor
from deepgen.measure.gpu_checks import Checks, known
from deepgen.operators import Array, Operator
from deepgen.operators.compare import compare, explain, flat_scale
from deepgen.runtime.gpu_driver import Driver
from deepgen.vocabulary import BadInput, Verdict

_NAN_BYTE = 0xFF  # a NaN in every floating format, and not one that arithmetic gives
_INTEGER_BYTES = (0xAA, 0x55)  # in turn: an integer that was right by chance cannot be so twice

_SCALE_BYTES = 4


class GpuBench:
    """Inputs that kernels must leave as they are, outputs that are poisoned before every run."""

    def __init__(
        self, driver: Driver, checks: Checks, operator: Operator, seed: int, probe: str, scratch: Path
    ) -> None:
        self.operator, self._driver, self._checks = operator, driver, checks
        self._probe = probe
        inputs, self._want = handed.arrays(operator, seed, probe, scratch)
        self.buffers: dict[str, DeviceBuffer] = {}
        self._before: dict[str, DeviceBuffer] = {}  # what inputs hold, and tensors that are read and written held
        self._right: dict[str, DeviceBuffer] = {}  # the reference
        self._scale: dict[str, DeviceBuffer] = {}  # and its scale, in f32: one number, or one an element
        self._kept: dict[str, DeviceBuffer] = {}  # an answer that was found right
        self._poison: dict[str, int] = {}
        self._runs = 0
        for tensor in operator.tensors():
            buffer = DeviceBuffer(driver, tensor.name, tensor.bytes)
            self.buffers[tensor.name] = buffer
            if tensor.role != "output":
                buffer.put(inputs[tensor.name])
                self._before[tensor.name] = DeviceBuffer(driver, tensor.name, tensor.bytes)
                driver.copy(self._before[tensor.name].start, buffer.start, tensor.bytes)
        self.outputs = [t for t in operator.tensors() if t.role != "input"]
        for tensor in self.outputs:
            if not known(tensor.dtype):
                raise BadInput(f"{tensor.name} is {tensor.dtype}: such answers cannot be judged on a GPU yet")
            answer = self._want[tensor.name]
            want = np.ascontiguousarray(answer.values, np.int64 if tensor.dtype.integer else np.float64)
            scale = np.ascontiguousarray(flat_scale(answer), np.float32)
            for place, array in ((self._right, want), (self._scale, scale)):
                place[tensor.name] = DeviceBuffer(driver, tensor.name, array.nbytes)
                place[tensor.name].put(array)
            self._kept[tensor.name] = DeviceBuffer(driver, tensor.name, tensor.bytes)
        self.bytes = 2 * sum(t.bytes for t in operator.tensors()) + sum(12 * _size(t.shape) for t in self.outputs)
        driver.synchronize()

    def addresses(self) -> dict[str, int]:
        return {name: buffer.start for name, buffer in self.buffers.items()}

    def tensors(self) -> dict[str, DeviceTensor]:
        return {t.name: DeviceTensor(self.buffers[t.name].start, t.shape, t.dtype) for t in self.operator.tensors()}

    def reset(self) -> None:
        """Before each run: spoil the outputs, restore what is read and written."""
        self._runs += 1
        for tensor in self.outputs:
            buffer = self.buffers[tensor.name]
            if tensor.role == "inout":
                self._driver.copy(buffer.start, self._before[tensor.name].start, tensor.bytes)
                continue
            byte = _INTEGER_BYTES[self._runs % 2] if tensor.dtype.integer else _NAN_BYTE
            self._poison[tensor.name] = byte
            self._driver.fill(buffer.start, byte, tensor.bytes)

    def judge(self) -> float:
        """The largest error of the outputs as a share of the tolerance, when all are right."""
        worst = 0.0
        for tensor in self.outputs:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            right, scale = self._right[tensor.name].start, self._scale[tensor.name]
            each = scale.bytes > _SCALE_BYTES
            found = self._checks.judge(
                self.buffers[tensor.name].start, right, scale.start, _size(tensor.shape), each, tensor.dtype, tolerance
            )
            if found.count:
                self._explain(tensor.name)
            worst = max(worst, found.error)
        return worst

    def keep(self) -> None:
        """Remember the outputs as they are: they were found right."""
        for tensor in self.outputs:
            self._driver.copy(self._kept[tensor.name].start, self.buffers[tensor.name].start, tensor.bytes)

    def same_as_kept(self) -> bool:
        return not any(
            self._checks.differ(self.buffers[t.name].start, self._kept[t.name].start, t.bytes).count
            for t in self.outputs
        )

    def look_for_damage(self) -> None:
        """Inputs must be as they were, and nothing may be written beside any tensor."""
        for tensor in self.operator.tensors():
            buffer = self.buffers[tensor.name]
            if damage := self._checks.damage(buffer):
                raise Rejected(Verdict.WRONG, damage)
            if tensor.role == "input":
                before = self._before[tensor.name].start
                found = self._checks.differ(buffer.start, before, tensor.bytes)
                if found.count:
                    self._driver.copy(buffer.start, before, tensor.bytes)
                    raise Rejected(Verdict.WRONG, f"wrote to its input {tensor.name} (at byte {found.place})")

    def close(self) -> None:
        for group in (self.buffers, self._before, self._right, self._scale, self._kept):
            for buffer in group.values():
                buffer.close()
            group.clear()

    def _explain(self, name: str) -> None:
        """The host's rule decides; it also finds the words."""
        tensor = next(t for t in self.outputs if t.name == name)
        got: Array = self.buffers[name].get(tensor.empty())
        found = compare(got, self._want[name], tensor.dtype, self.operator.tolerance(name, self._probe))
        if not found.ok:
            sentence = explain(name, got, self._want[name].values, tensor.dtype, found, self._poison.get(name))
            raise Rejected(Verdict.WRONG, sentence, found.error if np.isfinite(found.error) else None)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))

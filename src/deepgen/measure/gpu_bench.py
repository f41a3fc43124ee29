"""The operator's tensors on a device, filled from a seed, with the right answer beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deepgen.measure import handed
from deepgen.measure.bench import Rejected
from deepgen.measure.gpu_buffers import DeviceBuffer, DeviceTensor
from deepgen.measure.gpu_checks import Checks, known
from deepgen.measure.gpu_reference import DeviceReference
from deepgen.operators import Answer, Array, Operator, Tensor
from deepgen.operators.compare import compare, explain, flat_scale
from deepgen.runtime.gpu_driver import Driver, DriverError
from deepgen.vocabulary import BadInput, Verdict

_NAN_BYTE = 0xFF  # a NaN in every floating format, and not one that arithmetic gives
_INTEGER_BYTES = (0xAA, 0x55)  # in turn: an integer that was right by chance cannot be so twice

_WANT_BYTES, _SCALE_BYTES = 8, 4


class GpuBench:
    """Inputs that kernels must leave as they are, outputs that are poisoned before every run."""

    def __init__(
        self,
        driver: Driver,
        checks: Checks,
        operator: Operator,
        seed: int,
        probe: str,
        scratch: Path,
        on_device: DeviceReference | None = None,
    ) -> None:
        self.operator, self._driver, self._checks = operator, driver, checks
        self._probe = probe
        inputs, answers = handed.arrays(operator, seed, probe, scratch)
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
            self._kept[tensor.name] = DeviceBuffer(driver, tensor.name, tensor.bytes)
        self.bytes = 2 * sum(t.bytes for t in operator.tensors()) + sum(12 * _size(t.shape) for t in self.outputs)
        self._want: Mapping[str, Answer] | None = None  # where the host computed it
        self.reference = "device" if on_device else "host"  # who did, and why
        doubt = self._from_device(on_device, inputs) if on_device else ""
        if doubt is not None:
            self.reference = f"host: {doubt}" if doubt else "host"
            self._want = answers()
            self._from_host(self._want)
        driver.synchronize()

    def _from_device(self, on_device: DeviceReference, inputs: Mapping[str, Array]) -> str | None:
        """Have the device compute the reference. Gives why that is not to be believed, if it is not."""
        try:
            for tensor in self.outputs:
                count = _size(tensor.shape)
                self._place(self._right, tensor.name, _WANT_BYTES * count)
                if on_device.scales_each(tensor.name):
                    self._place(self._scale, tensor.name, _SCALE_BYTES * count)
                else:
                    self._place(self._scale, tensor.name, _SCALE_BYTES).put(np.ones(1, np.float32))
            wants = {f"want_{name}": buffer.start for name, buffer in self._right.items()}
            scales = {f"scale_{name}": buffer.start for name, buffer in self._scale.items()}
            on_device.run(self.operator, {**self.addresses(), **wants, **scales})
        except DriverError as error:
            if error.sticky:
                raise
            return f"the device's reference could not be run: {error}"
        for tensor in self.outputs:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            want, scale = self._right[tensor.name], self._scale[tensor.name]
            if doubt := on_device.doubt(self.operator, tensor, inputs, want, scale, tolerance):
                return doubt
        return None

    def _from_host(self, answers: Mapping[str, Answer]) -> None:
        for tensor in self.outputs:
            answer = answers[tensor.name]
            want = np.ascontiguousarray(answer.values, np.int64 if tensor.dtype.integer else np.float64)
            scale = np.ascontiguousarray(flat_scale(answer), np.float32)
            for group, array in ((self._right, want), (self._scale, scale)):
                self._place(group, tensor.name, array.nbytes).put(array)

    def _place(self, group: dict[str, DeviceBuffer], name: str, size: int) -> DeviceBuffer:
        if name in group:
            group.pop(name).close()
        group[name] = DeviceBuffer(self._driver, name, size)
        return group[name]

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
        want = self._want[name] if self._want is not None else self._fetched(tensor)
        found = compare(got, want, tensor.dtype, self.operator.tolerance(name, self._probe))
        if not found.ok:
            sentence = explain(name, got, want.values, tensor.dtype, found, self._poison.get(name))
            raise Rejected(Verdict.WRONG, sentence, found.error if np.isfinite(found.error) else None)

    def _fetched(self, tensor: Tensor) -> Answer:
        """The device's reference, of which the host needs the whole only to explain what is wrong."""
        wide = np.dtype(np.int64 if tensor.dtype.integer else np.float64)
        values = self._right[tensor.name].get(np.empty(tensor.shape, wide))
        scale = self._scale[tensor.name]
        sizes = scale.get(np.empty(scale.bytes // _SCALE_BYTES, np.float32))
        return Answer(values, sizes.reshape(tensor.shape) if sizes.size > 1 else sizes.reshape(()))


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))

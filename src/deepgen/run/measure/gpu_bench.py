"""The operator's tensors on a device, filled from a seed, with the right answer beside them.

The answer is by the operator's own reference kernel, once numpy has checked some of its elements, or by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded, Tensor, Tolerance
from deepgen.operators.compare import compare, flat_scale
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.run.measure import handed
from deepgen.run.measure.base import Helper
from deepgen.run.measure.bench import AlternatingInputs, Rejected, error_of, poison
from deepgen.run.measure.gpu_device import Checks, DeviceBuffer, DeviceTensor, can_judge
from deepgen.targets.gpu_driver import Driver, DriverError
from deepgen.vocabulary import BadInput, TensorArg, Verdict, WorkspaceArg
from deepgen.vocabulary.dtypes import dtype

_WANT_BYTES, _SCALE_BYTES = 8, 4


@dataclass(frozen=True)
class DeviceSet:
    """Inputs, the right answers to them, and a contender's own once they were found right."""

    inputs: Mapping[str, DeviceBuffer]
    right: dict[str, DeviceBuffer] = field(default_factory=dict)  # the reference
    scale: dict[str, DeviceBuffer] = field(default_factory=dict)  # and its scale, in f32: one number, or one an element
    kept: dict[str, DeviceBuffer] = field(default_factory=dict)
    want: dict[str, Answer] = field(default_factory=dict)  # the reference again, where the host computed it


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
        self.operator, self._driver, self._checks, self._on_device = operator, driver, checks, on_device
        self._seed, self._probe, self._scratch = seed, probe, scratch
        self._owned: list[DeviceBuffer] = []
        self.buffers = {t.name: self._new(t.name, t.bytes) for t in operator.tensors()}
        self.outputs = [t for t in operator.tensors() if t.role != "input"]
        signature = operator.signature()
        self._judged = [t for t in self.outputs if signature[t.name].checked]
        for tensor in self.outputs:
            if not can_judge(tensor.dtype):
                raise BadInput(f"{tensor.name} is {tensor.dtype}: such answers cannot be judged on a GPU yet")
        self._poison: dict[str, int] = {}
        self._runs = 0
        self._present: DeviceSet | None = None
        self.reference = "device" if on_device else "host"  # who computed it, and why
        self._sets = [
            self._filled(self._placed(inputs), inputs, answers)
            for inputs, answers in handed.arrays(operator, seed, probe, scratch)
        ]
        mix = None if isinstance(operator, Recorded) else self._mixture
        self.alternating = AlternatingInputs(self._sets, self._sets[0].inputs, mix)
        self.use(self._sets[0])

    @property
    def bytes(self) -> int:
        return sum(buffer.bytes for buffer in self._owned)

    def _mixture(self, constant: frozenset[str]) -> DeviceSet:
        first, second = self._sets
        mixed = handed.mixed(self.operator, self._seed, self._probe, self._scratch, constant)
        return self._filled({**second.inputs, **{name: first.inputs[name] for name in constant}}, *mixed)

    def use(self, chosen: DeviceSet) -> None:
        """Rewrite in place the inputs that are not of this set. Those that are read and written follow in `reset`."""
        present = self._present
        for name, held in chosen.inputs.items():
            if present is None or present.inputs[name] is not held:
                self._driver.copy(self.buffers[name].start, held.start, held.bytes)
        self._present = chosen

    def _placed(self, inputs: Mapping[str, Array]) -> dict[str, DeviceBuffer]:
        """Inputs in device memory that no kernel is told of."""
        placed = {name: self._new(name, array.nbytes) for name, array in inputs.items()}
        for name, buffer in placed.items():
            buffer.put(inputs[name])
        return placed

    def _filled(
        self,
        buffers: Mapping[str, DeviceBuffer],
        inputs: Mapping[str, Array],
        answers: Callable[[], Mapping[str, Answer]],
    ) -> DeviceSet:
        """A set of inputs with its answers: from the device if it can be trusted, otherwise from the host."""
        filled = DeviceSet(buffers, kept={t.name: self._new(t.name, t.bytes) for t in self.outputs})
        doubt = self._from_device(filled, inputs)
        if doubt is not None:
            self.reference = f"host: {doubt}" if doubt else "host"
            computed = answers()
            if computed:
                self._from_host(filled, computed)
        self._driver.synchronize()
        return filled

    @property
    def unanswered(self) -> list[DeviceSet]:
        """The sets whose answers another kernel is to give."""
        return [one for one in self._sets if not one.right]

    def take(self, chosen: DeviceSet) -> None:
        """Take the outputs as they are for the answers to a set of inputs."""
        stored = {t.name: self.buffers[t.name].get(t.empty()) for t in self.outputs}
        self._from_host(chosen, {name: self.operator.answer_of(name, array) for name, array in stored.items()})
        self.reference = "kernel"
        self._driver.synchronize()

    def _from_device(self, filled: DeviceSet, inputs: Mapping[str, Array]) -> str | None:
        """Have the device compute the reference. Returns why that cannot be trusted, if it cannot."""
        on_device = self._on_device
        if on_device is None:
            return ""
        self.use(filled)
        try:
            for tensor in self.outputs:
                count = _size(tensor.shape)
                filled.right[tensor.name] = self._new(tensor.name, _WANT_BYTES * count)
                each = on_device.scales_each(tensor.name)
                filled.scale[tensor.name] = self._new(tensor.name, _SCALE_BYTES * (count if each else 1))
                if not each:
                    filled.scale[tensor.name].put(np.ones(1, np.float32))
            wants = {f"want_{name}": buffer.start for name, buffer in filled.right.items()}
            scales = {f"scale_{name}": buffer.start for name, buffer in filled.scale.items()}
            on_device.run(self.operator, {**self.addresses(), **wants, **scales})
        except DriverError as error:
            if error.sticky:
                raise
            return f"the device's reference could not be run: {error}"
        for tensor in self.outputs:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            want, scale = filled.right[tensor.name], filled.scale[tensor.name]
            if doubt := on_device.doubt(self.operator, tensor, inputs, want, scale, tolerance):
                return doubt
        return None

    def _from_host(self, filled: DeviceSet, answers: Mapping[str, Answer]) -> None:
        filled.want.update(answers)
        for tensor in self.outputs:
            answer = answers[tensor.name]
            want = np.ascontiguousarray(answer.values, np.int64 if tensor.dtype.integer else np.float64)
            scale = np.ascontiguousarray(flat_scale(answer), np.float32)
            for group, array in ((filled.right, want), (filled.scale, scale)):
                if tensor.name in group:
                    self._free(group[tensor.name])
                group[tensor.name] = self._new(tensor.name, array.nbytes)
                group[tensor.name].put(array)

    def _new(self, name: str, size: int) -> DeviceBuffer:
        self._owned.append(DeviceBuffer(self._driver, name, size))
        return self._owned[-1]

    def _free(self, buffer: DeviceBuffer) -> None:
        self._owned.remove(buffer)
        buffer.close()

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
                self._driver.copy(buffer.start, self._now.inputs[tensor.name].start, tensor.bytes)
                continue
            self._poison[tensor.name] = poison(tensor.dtype, self._runs)
            self._driver.fill(buffer.start, self._poison[tensor.name], tensor.bytes)

    def judge(self) -> float:
        """The largest error of the outputs as a share of the tolerance, when all are right."""
        worst = 0.0
        for tensor in self._judged:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            right, scale = self._now.right[tensor.name].start, self._now.scale[tensor.name]
            each = scale.bytes > _SCALE_BYTES
            result = self._checks.judge(
                self.buffers[tensor.name].start, right, scale.start, _size(tensor.shape), each, tensor.dtype, tolerance
            )
            if result.count:
                self._explain(tensor)
            worst = max(worst, result.error)
        return worst

    def keep(self) -> None:
        """Remember the outputs as they are: they were found right."""
        for tensor in self._judged:
            self._driver.copy(self._now.kept[tensor.name].start, self.buffers[tensor.name].start, tensor.bytes)

    def same_as(self, of: DeviceSet) -> bool:
        return not any(
            self._checks.differ(self.buffers[t.name].start, of.kept[t.name].start, t.bytes).count for t in self._judged
        )

    def look_at_inputs(self) -> None:
        """They must be as they were; after a run and before they are rewritten."""
        for tensor in self.operator.tensors():
            if tensor.role == "input":
                buffer, held = self.buffers[tensor.name], self._now.inputs[tensor.name]
                changed = self._checks.differ(buffer.start, held.start, tensor.bytes)
                if changed.count:
                    self._driver.copy(buffer.start, held.start, tensor.bytes)
                    raise Rejected(Verdict.WRONG, f"wrote to its input {tensor.name} (at byte {changed.place})")

    def look_for_damage(self) -> None:
        """Nothing may be written outside any tensor."""
        for buffer in self.buffers.values():
            if damage := self._checks.damage(buffer):
                raise Rejected(Verdict.WRONG, damage)

    def close(self) -> None:
        for buffer in self._owned:
            buffer.close()
        self._owned.clear()

    @property
    def _now(self) -> DeviceSet:
        assert self._present is not None, "a contender begins with its inputs"
        return self._present

    def _explain(self, tensor: Tensor) -> None:
        """The host's check decides, and it words the message."""
        name = tensor.name
        got: Array = self.buffers[name].get(tensor.empty())
        want = self._now.want[name] if self._now.want else self._fetched(tensor)
        error_of(got, want, tensor, self.operator.tolerance(name, self._probe), self._poison.get(name))

    def _fetched(self, tensor: Tensor) -> Answer:
        """The device's reference, of which the host needs the whole only to explain what is wrong."""
        wide = np.dtype(np.int64 if tensor.dtype.integer else np.float64)
        values = self._now.right[tensor.name].get(np.empty(tensor.shape, wide))
        scale = self._now.scale[tensor.name]
        sizes = scale.get(np.empty(scale.bytes // _SCALE_BYTES, np.float32))
        return Answer(values, sizes.reshape(tensor.shape) if sizes.size > 1 else sizes.reshape(()))


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


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
            result = compare(buffer.some(places, of.numpy()), answer, of, within)
            if result.first is not None:
                index = ", ".join(str(int(i)) for i in np.unravel_index(places[result.first], output.shape))
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

"""The operator's tensors on a device, filled from a seed, with the correct result.

The result comes from the operator's reference kernel, after numpy has checked some of its elements, or from numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded, Tensor, Tolerance
from deepgen.operators.compare import Comparison, compare, explain_element, flat_scale, scale_format
from deepgen.operators.filling import DENORMALS
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.run.call.native import NotLoadable
from deepgen.run.measure import handed
from deepgen.run.measure.base import Helper
from deepgen.run.measure.bench import (
    AlternatingInputs,
    Rejected,
    error_of,
    few_places,
    holds_old_data,
    poison,
)
from deepgen.run.measure.gpu_device import CheckResult, Checks, DeviceBuffer, DeviceTensor, can_judge
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.references import doubt
from deepgen.targets.gpu_driver import Driver, DriverError
from deepgen.vocabulary import BadInput, TensorArg, Verdict, WorkspaceArg
from deepgen.vocabulary.kernel import GPU_ALIGN

_WANT_BYTES = 8


@dataclass(frozen=True)
class DeviceSet:
    """Inputs, the correct answers, and a contender's own outputs once they were found correct."""

    inputs: Mapping[str, DeviceBuffer]
    right: dict[str, DeviceBuffer] = field(default_factory=dict)  # the reference results
    scale: dict[str, DeviceBuffer] = field(default_factory=dict)  # and their scales: one number, or one per element
    kept: dict[str, DeviceBuffer] = field(default_factory=dict)


class GpuBench:
    """Device tensors: inputs that kernels must not change, and outputs that hold poison or old results before a run."""

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
        self._on_device = None if probe == DENORMALS else on_device  # it would tolerate flushing
        self._seed, self._probe, self._scratch = seed, probe, scratch
        self._owned: list[DeviceBuffer] = []
        self.buffers = {t.name: self._new(t.name, t.bytes) for t in operator.tensors()}
        self.outputs = [t for t in operator.tensors() if t.role != "input"]
        signature = operator.signature()
        self._judged = [t for t in self.outputs if signature[t.name].checked]
        self._read = [t for t in operator.tensors() if t.role == "input"]
        for tensor in self.outputs:
            if not can_judge(tensor.dtype):
                raise BadInput(f"{tensor.name} is {tensor.dtype}: such results cannot be verified on a GPU yet")
        self._poison: dict[str, int] = {}
        self._runs = 0
        self._placement = Placement.LINES
        self._present: DeviceSet | None = None
        self._last: DeviceSet | None = None  # of the previous run
        self._disturbed: list[str] = []
        self.reference = "device" if on_device else "host"  # where it was computed, and why
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
        drawn = [inputs for inputs, _ in handed.arrays(self.operator, self._seed, self._probe, self._scratch)]
        mixed = handed.mixed(self.operator, self._seed, self._probe, self._scratch, constant, drawn)
        return self._filled({**second.inputs, **{name: first.inputs[name] for name in constant}}, *mixed)

    def use(self, chosen: DeviceSet) -> None:
        """Copy the inputs that differ in this set, in place. Tensors that are read and written follow in `reset`."""
        present = self._present
        for name, held in chosen.inputs.items():
            if present is None or present.inputs[name] is not held:
                self._driver.copy(self.buffers[name].start, held.start, held.bytes)
        self._present = chosen

    def disturb(self, constant: frozenset[str], seed: int) -> bool:
        """Change a few elements of the inputs in place, until `settle`. Returns whether any could be changed."""
        for tensor in (changed := [t for t in self._read if t.name in self.operator.changeable() - constant]):
            values = self.buffers[tensor.name].get(tensor.empty()).reshape(-1)
            places, other = few_places(values.size, seed)
            values[places] = values[other]
            self.buffers[tensor.name].put(values)
        self._disturbed = [t.name for t in changed]
        return bool(changed)

    def settle(self) -> None:
        """Restore what `disturb` changed."""
        for name, held in ((name, self._now.inputs[name]) for name in self._disturbed):
            self._driver.copy(self.buffers[name].start, held.start, held.bytes)

    def place(self, placed: Placement) -> None:
        """Place the next contender's tensors: aligned as by an allocator, or only as much as promised."""
        if placed is Placement.TIGHT:  # a device has no guard pages to place tensors against
            placed = Placement.LINES
        if placed is self._placement:
            return
        self._placement = placed
        signature = self.operator.signature()
        for tensor in self.operator.tensors():
            promised = max(signature[tensor.name].align or tensor.dtype.bytes, GPU_ALIGN)
            self.buffers[tensor.name].place(placed.border(promised)[1])
        chosen, self._present = self._now, None
        self.use(chosen)

    def _placed(self, inputs: Mapping[str, Array]) -> dict[str, DeviceBuffer]:
        """Copy inputs to device memory that no kernel gets."""
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
        """A set of inputs with its answers: from the device if they can be trusted, otherwise from the host."""
        filled = DeviceSet(buffers, kept={t.name: self._new(t.name, t.bytes) for t in self.outputs})
        why = self._from_device(filled, inputs)
        if why is not None:
            self.reference = f"host: {why}" if why else "host"
            computed = answers()
            if computed:
                self._from_host(filled, computed)
        self._driver.synchronize()
        return filled

    @property
    def unanswered(self) -> list[DeviceSet]:
        """The sets whose answers come from another kernel."""
        return [one for one in self._sets if not one.right]

    def take(self, chosen: DeviceSet) -> None:
        """Use the current outputs as the answers to a set of inputs."""
        stored = {t.name: self.buffers[t.name].get(t.empty()) for t in self.outputs}
        self._from_host(chosen, {name: self.operator.answer_of(name, array) for name, array in stored.items()})
        self.reference = "kernel"
        self._driver.synchronize()

    def _from_device(self, filled: DeviceSet, inputs: Mapping[str, Array]) -> str | None:
        """Compute the reference on the device. Returns None if it can be trusted, otherwise why not (or "")."""
        on_device = self._on_device
        if on_device is None:
            return ""
        try:
            kernel = on_device.kernel(self.operator)
            if kernel is None:
                return ""
            scaled = _scaled(kernel)
            self.use(filled)
            for tensor in self.outputs:
                count = _size(tensor.shape)
                filled.right[tensor.name] = self._new(tensor.name, _WANT_BYTES * count)
                each = tensor.name in scaled
                sized = _kinds(tensor)[1]
                filled.scale[tensor.name] = self._new(tensor.name, sized.itemsize * (count if each else 1))
                if not each:
                    filled.scale[tensor.name].put(np.ones(1, sized))
            wants = {f"want_{name}": buffer.start for name, buffer in filled.right.items()}
            scales = {f"scale_{name}": buffer.start for name, buffer in filled.scale.items()}
            on_device.run(kernel, self.operator, {**self.addresses(), **wants, **scales})
        except (DriverError, NotLoadable) as error:
            if isinstance(error, DriverError) and error.sticky:
                raise
            return f"the device's reference could not be run: {error}"
        for tensor in self.outputs:

            def some(name: str, places: Array, of: Tensor = tensor) -> Array:
                which = name.startswith("scale_")
                return (filled.right, filled.scale)[which][of.name].some(places, _kinds(of)[which])

            if why := doubt(self.operator, tensor, inputs, self._probe, some, scaled=tensor.name in scaled):
                return why
        return None

    def _from_host(self, filled: DeviceSet, answers: Mapping[str, Answer]) -> None:
        for tensor in self.outputs:
            answer = answers[tensor.name]
            groups = zip((filled.right, filled.scale), (answer.values, flat_scale(answer)), _kinds(tensor), strict=True)
            for group, values, kind in groups:
                array = np.ascontiguousarray(values, kind)
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

    def begin(self) -> None:
        """Prepare for another contender."""
        self._runs = 0

    def reset(self) -> None:
        """Before each run: poison the outputs or keep old results in them; restore what is read and written."""
        self._runs += 1
        old = holds_old_data(self._runs) and self._last is not None and self._last is not self._now
        self._last = self._now
        for tensor in self.outputs:
            buffer = self.buffers[tensor.name]
            if tensor.role == "inout":
                self._driver.copy(buffer.start, self._now.inputs[tensor.name].start, tensor.bytes)
                continue
            if old:
                self._poison.pop(tensor.name, None)
                continue
            self._poison[tensor.name] = poison(tensor.dtype, self._runs)
            self._driver.fill(buffer.start, self._poison[tensor.name], tensor.bytes)

    def judge(self) -> float:
        """The largest error of the outputs as a share of the tolerance, if all are correct."""
        worst = 0.0
        for tensor in self._judged:
            tolerance = self.operator.tolerance_on(tensor.name, self._probe)
            result = self._judged_part(tensor, tolerance, 0, _size(tensor.shape))
            if result.count:
                self._explain(tensor, tolerance, result)
            worst = max(worst, result.error)
        return worst

    def _judged_part(self, tensor: Tensor, tolerance: Tolerance, first: int, last: int) -> CheckResult:
        """Check a contiguous part of an output's elements."""
        right, scale = self._now.right[tensor.name].start, self._now.scale[tensor.name]
        each = scale.bytes > (size := _kinds(tensor)[1].itemsize)
        return self._checks.judge(
            self.buffers[tensor.name].start + first * tensor.dtype.bytes,
            right + first * _WANT_BYTES,
            scale.start + (first * size if each else 0),
            last - first,
            each,
            tensor.dtype,
            tolerance,
        )

    def keep(self) -> None:
        """Store the current outputs, which were found correct."""
        for tensor in self._judged:
            self._driver.copy(self._now.kept[tensor.name].start, self.buffers[tensor.name].start, tensor.bytes)

    def unchanged(self, of: DeviceSet) -> bool:
        """Whether inputs are unchanged and outputs equal those found correct, in a single check."""
        pairs = [(self.buffers[t.name].start, of.kept[t.name].start, t.bytes) for t in self._judged]
        held = self._now.inputs
        pairs += [(self.buffers[t.name].start, held[t.name].start, t.bytes) for t in self._read]
        return self._checks.same(pairs)

    def same_as(self, of: DeviceSet) -> bool:
        return not any(
            self._checks.differ(self.buffers[t.name].start, of.kept[t.name].start, t.bytes).count for t in self._judged
        )

    def look_at_inputs(self) -> None:
        """Check after a run, before inputs are rewritten, that they are unchanged."""
        for tensor in self._read:
            buffer, held = self.buffers[tensor.name], self._now.inputs[tensor.name]
            changed = self._checks.differ(buffer.start, held.start, tensor.bytes)
            if changed.count:
                self._driver.copy(buffer.start, held.start, tensor.bytes)
                raise Rejected(Verdict.WRONG, f"wrote to its input {tensor.name} (at byte {changed.place})")

    def look_for_damage(self) -> None:
        """Check that nothing was written outside the tensors."""
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

    def _explain(self, tensor: Tensor, tolerance: Tolerance, result: CheckResult) -> None:
        """Describe the first wrong element, which alone is copied to the host. The host's check decides."""
        first, last = 0, _size(tensor.shape)
        while last - first > 1:
            middle = (first + last) // 2
            if self._judged_part(tensor, tolerance, first, middle).count:
                last = middle
            else:
                first = middle
        place, scale = np.array([first]), self._now.scale[tensor.name]
        wide, sized = _kinds(tensor)
        each = scale.bytes > sized.itemsize
        sizes = scale.some(place if each else place * 0, sized)
        want = Answer(self._now.right[tensor.name].some(place, wide), sizes)
        got = self.buffers[tensor.name].some(place, tensor.dtype.numpy())
        poisoned = self._poison.get(tensor.name)
        if compare(got, want, tensor.dtype, tolerance).ok:
            whole = self._now.right[tensor.name].get(np.empty(tensor.shape, wide))
            scales = scale.get(np.empty(tensor.shape if each else (), sized))
            error_of(self.buffers[tensor.name].get(tensor.empty()), Answer(whole, scales), tensor, tolerance, poisoned)
            return
        wrong = Comparison(result.error, result.count, first, _size(tensor.shape))
        index = ", ".join(str(int(i)) for i in np.unravel_index(first, tensor.shape))
        where = f"{tensor.name}[{index}]"
        sentence = explain_element(where, got, want.values[0], tensor.dtype, wrong, poisoned)
        raise Rejected(Verdict.WRONG, sentence, wrong.error if np.isfinite(wrong.error) else None)


def _kinds(tensor: Tensor) -> tuple[Any, Any]:
    """The formats of an output's reference and of its scales."""
    return np.dtype(np.int64 if tensor.dtype.integer else np.float64), scale_format(tensor.dtype).numpy()


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


class DeviceReference:
    """The reference kernels of an operator, each for some of its shapes."""

    def __init__(self, driver: Driver, helpers: Sequence[Helper], language: str) -> None:
        self._driver, self._language = driver, language
        self._helpers = {helper.kernel.name: helper for helper in helpers}
        self._loaded: dict[str, GpuKernel] = {}

    def kernel(self, operator: Operator) -> GpuKernel | None:
        """The loaded reference kernel for an operator's shape; None if there is none."""
        own = operator.reference_kernel(self._language)
        if own is None or own.name not in self._helpers:
            return None
        if own.id not in self._loaded:
            self._loaded[own.id] = GpuKernel.read(self._driver, own, self._helpers[own.name].binary)
        return self._loaded[own.id]

    def run(self, kernel: GpuKernel, operator: Operator, addresses: Mapping[str, int]) -> None:
        """`addresses` are those of the operator's tensors and of the results to write."""
        spaces: list[DeviceBuffer] = []

        def allocate(arg: WorkspaceArg, size: int) -> int:
            spaces.append(DeviceBuffer(self._driver, arg.name, size))
            return spaces[-1].start

        try:
            bound = kernel.bind(addresses, operator.scalars(), allocate)
            bound.prepare.run()
            bound.run.run()
            self._driver.synchronize()
        finally:
            for space in spaces:
                space.close()

    def close(self) -> None:
        for kernel in self._loaded.values():
            kernel.close()


def _scaled(kernel: GpuKernel) -> set[str]:
    """The outputs for which a reference kernel computes a scale per element."""
    names = {arg.tensor for step in kernel.kernel.plan.steps for arg in step.args if isinstance(arg, TensorArg)}
    return {name[len("scale_") :] for name in names if name.startswith("scale_")}

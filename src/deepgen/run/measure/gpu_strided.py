"""A contender whose tensors lie in memory with room between their rows, as parts of a user's larger arrays do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from deepgen.operators import Operator, Tensor, TensorFacts
from deepgen.operators.signature import DENSE, dense_strides
from deepgen.run.call import plans
from deepgen.run.call.gpu_kernel import BoundPlan, GpuKernel
from deepgen.run.measure import limits
from deepgen.run.measure.bench import Rejected
from deepgen.run.measure.gpu_buffers import DeviceBuffer
from deepgen.run.measure.gpu_entrant import GpuEntrant
from deepgen.run.measure.pulse import Stage
from deepgen.vocabulary import Kernel, LaunchPlan, Verdict

_ROOM = 64  # bytes after each row: a multiple of what any kernel loads at once
_GAP = 0xB7  # in every byte of it


@dataclass(frozen=True)
class Padded:
    """A tensor's rows in a buffer of their own."""

    tensor: Tensor
    buffer: DeviceBuffer
    dense: int  # the address of the same rows without room between them

    @property
    def rows(self) -> int:
        return prod(self.tensor.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.tensor.shape[-1] * self.tensor.dtype.bytes


class StridedEntrant(GpuEntrant):
    """Rows are copied to where the kernel finds them and back, so that everything else is as for dense tensors."""

    def load(self, kernel: Kernel, binary: str) -> None:
        operator = self.bench.operator
        facts = padded_facts(operator, kernel.plan)
        if not facts:
            raise Rejected(Verdict.REFUSED, "it serves dense arrays only")
        with self._stage(Stage.LOAD, limits.LOAD_SECONDS):
            scalars = operator.strided(facts)
            plans.check_shape(kernel, scalars)
            self._kernel = GpuKernel.read(self.device.driver, kernel, binary)
            self._padded = [self._place(tensor) for tensor in operator.tensors() if tensor.name in facts]
            addresses = {**self.bench.addresses(), **{p.tensor.name: p.buffer.start for p in self._padded}}
            shapes = {t.name: (t.shape, t.dtype.name) for t in operator.tensors()}
            bound = self._kernel.bind(addresses, scalars, self._allocate, shapes)
        self._prepare = _After(self._scatter, bound.prepare) if kernel.plan.prepare else None
        self._run = lambda: self._between(bound.run.run)
        self._constant = plans.constant(kernel.plan)
        self._sets = self.bench.turns.under(self._constant)

    def _place(self, tensor: Tensor) -> Padded:
        rows, row = prod(tensor.shape[:-1]), tensor.shape[-1] * tensor.dtype.bytes
        buffer = DeviceBuffer(self.device.driver, f"{tensor.name} with room between rows", rows * (row + _ROOM))
        self._workspaces[f"{tensor.name} strided"] = buffer  # looked at for damage and closed like any
        return Padded(tensor, buffer, self.bench.addresses()[tensor.name])

    def _scatter(self) -> None:
        driver = self.device.driver
        for padded in self._padded:
            driver.fill(padded.buffer.start, _GAP, padded.buffer.bytes)
            for row in range(padded.rows):
                to = padded.buffer.start + row * (padded.row_bytes + _ROOM)
                driver.copy(to, padded.dense + row * padded.row_bytes, padded.row_bytes)

    def _between(self, run: Callable[[], None]) -> None:
        driver = self.device.driver
        self._scatter()
        run()
        driver.synchronize()
        for padded in self._padded:
            pitch = padded.row_bytes + _ROOM
            found = padded.buffer.get(np.empty((padded.rows, pitch), np.uint8))
            if padded.tensor.role != "input" and (found[:, padded.row_bytes :] != _GAP).any():
                raise Rejected(Verdict.WRONG, f"wrote between the rows of {padded.tensor.name}")
            for row in range(padded.rows):
                driver.copy(padded.dense + row * padded.row_bytes, padded.buffer.start + row * pitch, padded.row_bytes)


class _After(BoundPlan):
    """A plan that runs once something else was done."""

    def __init__(self, first: Callable[[], None], plan: BoundPlan) -> None:
        self._first, self._plan = first, plan

    def run(self, stream: int | None = 0) -> None:
        self._first()
        self._plan.run()


def padded_facts(operator: Operator, plan: LaunchPlan) -> dict[str, TensorFacts]:
    """Tensors with room after each row, of those that the launch plan tells the strides of."""
    told, plain, signature = plans.names_of(plan), operator.scalars(), operator.signature()
    out: dict[str, TensorFacts] = {}
    for tensor in operator.tensors():
        if len(tensor.shape) < 2 or tensor.shape[-2] < 2 or signature[tensor.name].strides == DENSE:
            continue
        shape = (*tensor.shape[:-1], tensor.shape[-1] + _ROOM // tensor.dtype.bytes)
        facts = TensorFacts(tensor.shape, tensor.dtype.name, dense_strides(shape))
        changed = {name for name, value in operator.strided({tensor.name: facts}).items() if plain[name] != value}
        if changed & told:
            out[tensor.name] = facts
    return out

"""The VTA runner: programs are simulated in this process, and their cycles determine their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from deepgen.extend import (
    WAYS,
    Answer,
    Artifact,
    BadInput,
    Contender,
    Counted,
    DeepgenError,
    Json,
    Kernel,
    Measurement,
    Task,
    Verdict,
    compare,
    explain,
    foreign,
)
from deepgen_vta.chip import Vta
from deepgen_vta.program import Program, check
from deepgen_vta.simulator import Array, ProgramFault, Timeline, check_races, element, execute, timeline


class VtaRunner:
    """Executes every program exactly, checks it for races, and compares it with the reference."""

    def __init__(self, task: Task) -> None:
        if not isinstance(task.target, Vta):
            raise BadInput(f"{task.target.name} is not a VTA target")
        self.task, self._vta = task, task.target
        self._drawn = lru_cache(maxsize=4)(self._draw)

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        return self._tried(artifact, self.task.seed, "normal", shape, samples=1)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        if probe in WAYS:
            return Measurement(Verdict.REFUSED, "images of tensors are made from dense arrays, for one run")
        return self._tried(artifact, seed, probe, shape, samples=0)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        out = []
        for contender in contenders:
            if contender.artifact is None:
                raise DeepgenError(f"the simulated VTA has no baseline {contender.name!r}")
            out.append(self._tried(contender.artifact, seed, "normal", shape, samples=rounds))
        return out

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        return Counted.nothing(events, "the simulated VTA has no counters")

    def close(self) -> None:
        pass

    def _tried(self, artifact: Artifact, seed: int, probe: str, shape: int, samples: int) -> Measurement:
        """The verdict on one run, with its time repeated as samples: every run takes the same time."""
        text = foreign.read_bytes(Path(artifact.binary)).decode()
        try:
            program = Program.from_text(text, artifact.binary)
            check(program, self._vta)
            if not self._fits(program, shape):
                return Measurement(Verdict.REFUSED, "the program is for other sizes")
            order = timeline(program, self._vta)
            check_races(program, order, self._vta)
            wrong = self._wrong(program, order, seed, probe, shape)
        except (BadInput, ProgramFault) as error:
            wrong = str(error)
        if wrong is not None:
            return Measurement(Verdict.WRONG, wrong)
        seconds = order.cycles / (self._vta.mhz * 1e6)
        busy: dict[str, Json] = {f"{name}_busy": round(part / order.cycles, 4) for name, part in order.busy.items()}
        conditions: dict[str, Json] = {"simulated": True, "cycles": order.cycles, **busy}
        return Measurement(Verdict.CORRECT, samples=(seconds,) * samples, error=0.0, conditions=conditions)

    def _fits(self, program: Program, shape: int) -> bool:
        """Whether the images have the sizes of the tensors, rounded up to whole blocks."""
        shapes = {tensor.name: tensor.shape for tensor in self.task.shapes[shape].tensors()}
        return {image.tensor for image in program.images} == set(shapes) and all(
            len(shapes[image.tensor]) == 2
            and all(
                count == -(-shapes[image.tensor][axis] // size)
                for axis, count, size in zip(
                    image.axes, (image.rows, image.columns), element(image, self._vta), strict=True
                )
            )
            for image in program.images
        )

    def _wrong(self, program: Program, order: Timeline, seed: int, probe: str, shape: int) -> str | None:
        """What is wrong with the results, if anything."""
        operator = self.task.shapes[shape]
        inputs, want = self._drawn(seed, probe, shape)
        results = execute(program, order, self._vta, inputs)
        for tensor in operator.tensors():
            if tensor.name in inputs:
                continue
            got = np.ascontiguousarray(results[tensor.name][tuple(map(slice, tensor.shape))])
            answer = want[tensor.name]
            result = compare(got, answer, tensor.dtype, operator.tolerance(tensor.name, probe))
            if not result.ok:
                return explain(tensor.name, got, answer.values, tensor.dtype, result, None)
        return None

    def _draw(self, seed: int, probe: str, shape: int) -> tuple[Mapping[str, Array], Mapping[str, Answer]]:
        operator = self.task.shapes[shape]
        inputs = operator.inputs(seed, probe)
        return inputs, operator.reference(inputs)

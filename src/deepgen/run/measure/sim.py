"""The runner of the simulated device: no process and no clock, with the same results on every machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.run.counters import Counted
from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.race import enough
from deepgen.targets import Sim
from deepgen.targets.sim import duration, fault, noisy, true_seconds
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Measurement, Verdict
from deepgen.vocabulary.json import canonical

_CONDITIONS = {"simulated": True}


class SimRunner:
    """Draws times from the target's cost function; a draw depends only on seed, config and occasion."""

    def __init__(self, task: Task) -> None:
        if not isinstance(task.target, Sim):
            raise BadInput(f"{task.target.name} is not a simulated target")
        self.task, self._sim = task, task.target

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        config = _config(kernel)
        time.sleep(duration(self._sim.measure_seconds, self._key("takes", config)))
        failed = self._failed(config)
        if failed:
            return failed
        policy = self.task.policy
        drawn = self._draw(config, self._key("measure", config, shape), policy.max_samples, shape)
        # `beat` depends on which trials ended earlier, which must not affect the draw, so it is ignored.
        count = policy.min_samples
        while not enough(drawn[:count], policy):
            count += 1
        return Measurement(Verdict.CORRECT, samples=tuple(drawn[:count]), error=0.0, conditions=_CONDITIONS)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._failed(_config(kernel)) or Measurement(Verdict.CORRECT, error=0.0, conditions=_CONDITIONS)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        out = []
        for contender in contenders:
            if contender.kernel is None:
                raise DeepgenError(f"the simulated device has no baseline {contender.name!r}")
            config = _config(contender.kernel)
            drawn = self._draw(config, self._key(f"compare {seed}", config, shape), rounds, shape)
            right = Measurement(Verdict.CORRECT, samples=tuple(drawn), error=0.0, conditions=_CONDITIONS)
            out.append(self._failed(config) or right)
        return out

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        return Counted.nothing(events, "the simulated device has no counters")

    def close(self) -> None:
        pass

    def _draw(self, config: Mapping[str, Any], key: str, count: int, shape: int) -> list[float]:
        return noisy(self._sim, true_seconds(self._sim, self.task.shapes[shape].flops(), config), key, count)

    def _failed(self, config: Mapping[str, Any]) -> Measurement | None:
        verdict = fault(self._sim, config)
        return None if verdict is None else Measurement(verdict, f"simulated fault: {verdict.value}")

    def _key(self, occasion: str, config: Mapping[str, Any], shape: int = 0) -> str:
        return canonical([self.task.seed, f"{occasion} at {shape}" if shape else occasion, dict(config)])


def _config(kernel: Kernel) -> dict[str, Any]:
    try:
        return dict(json.loads(kernel.sources[0].text)["config"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(f"kernel {kernel.name} is not for the simulated device", allowed='{"config": {...}}') from error

"""An operator as plain data, for workers, bundles and reports that do not have its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work
from deepgen.operators.signature import INPUT, Signature
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.json import JsonObject

RECORDED = "recorded operator"


@dataclass(frozen=True)
class Recorded(Operator):
    """All facts about an operator that are known without running its code. Inputs and answers come as arrays."""

    name: ClassVar[str] = RECORDED

    data: Mapping[str, Any]  # what `record` wrote

    @property
    def operator(self) -> Mapping[str, Any]:
        """The JSON of the operator itself."""
        described: Mapping[str, Any] = self.data["operator"]
        return described

    def checked(self, *, glance: bool = False) -> Recorded:
        """The record itself, if it is complete; otherwise raises KeyError, TypeError or ValueError.

        `glance`: only the description and the work are needed.
        """
        work = self.work()
        numbers = [*work.operations.values(), work.read, work.written, *self.sizes().values()]
        if not all(type(number) in (int, float) and number >= 0 for number in numbers):
            raise ValueError("its work is not recorded")
        self.describe()
        if not glance:
            self.signature(), self.values(), self.scalars(), self.probes(), self.slug()
        return self

    def describe(self) -> str:
        return str(self.data["describe"])

    def slug(self) -> str:
        return str(self.data["slug"])

    def signature(self) -> Signature:
        return Signature.from_json(self.data["signature"])

    def sizes(self) -> Mapping[str, int]:
        return dict(self.data["sizes"])

    def values(self) -> Mapping[str, int | float]:
        return dict(self.data["values"])

    def scalars(self) -> Mapping[str, int | float]:
        return dict(self.data["scalars"])

    def work(self) -> Work:
        return Work.from_json(self.data["work"])

    def probes(self) -> tuple[str, ...]:
        return tuple(probe for probe in self.data["tolerances"] if probe not in self.float_probes())

    def float_probes(self) -> tuple[str, ...]:
        return tuple(self.data.get("float_probes", ()))

    def changeable(self) -> frozenset[str]:
        floats = [t.name for t in self.tensors() if t.role == INPUT and not t.dtype.integer]
        return frozenset(self.data.get("changeable", floats))

    def tolerance(self, output: str, probe: str = "normal") -> Tolerance:
        return Tolerance(*self.data["tolerances"][probe][output])

    tolerance_on = tolerance

    def judge(self) -> str | None:
        judge = self.data.get("judge")
        return None if judge is None else str(judge)

    def parameters(self) -> Mapping[str, Any]:
        raise self._elsewhere()

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        raise self._elsewhere()

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        raise self._elsewhere()

    def _elsewhere(self) -> DeepgenError:
        return DeepgenError(
            f"{self.describe()} is known only from a study's record, without its code: its inputs and references "
            "cannot be computed"
        )

    def to_json(self) -> JsonObject:
        return {"name": RECORDED, "data": dict(self.data)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recorded:
        return cls(data["data"])


def record(operator: Operator) -> Recorded:
    """The record of an operator; all plain JSON."""
    if isinstance(operator, Recorded):
        return operator
    outputs = [p.name for p in operator.signature().outputs]
    tolerances: JsonObject = {}
    special = operator.float_probes()
    for probe in (*operator.probes(), *special):
        allowed = {name: operator.tolerance_on(name, probe) for name in outputs}
        tolerances[probe] = {name: [t.absolute, t.relative, t.floor] for name, t in allowed.items()}
    judge, changeable = operator.judge(), operator.changeable()
    whole = any(t.dtype.integer for t in operator.tensors() if t.name in changeable)
    return Recorded(
        {
            **({} if judge is None else {"judge": judge}),
            "operator": operator.to_json(),
            "describe": operator.describe(),
            "slug": operator.slug(),
            "signature": operator.signature().to_json(),
            "sizes": dict(operator.sizes()),
            "values": dict(operator.values()),
            "scalars": dict(operator.scalars()),
            "work": operator.work().to_json(),
            "tolerances": tolerances,
            **({"float_probes": [*special]} if special else {}),
            **({"changeable": sorted(changeable)} if whole else {}),
        }
    )

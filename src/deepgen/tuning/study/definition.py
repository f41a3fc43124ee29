"""A study's definition, checked before it is used: the folder may come from somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import BadInput, Trial

if TYPE_CHECKING:
    from deepgen.space import Space

STRANGE = "holds what no deepgen wrote"
_NEEDED: Mapping[str, type] = {
    "operator": dict,
    "target": dict,
    "generator": str,
    "domains": dict,
    "strategy": str,
    "options": dict,
    "seed": int,
    "policy": dict,
    "space": str,
    "deepgen": str,
    "facts": dict,
}
_OPTIONAL: Mapping[str, type] = {
    "code": dict,
    "recipe": dict,
    "also": list,
    "also_facts": list,
    "transfer": bool,
    "second_look": bool,
}


def check(definition: Mapping[str, Any], where: str) -> None:
    """Raises BadInput for a definition that no deepgen wrote."""
    for key, kind in {**_NEEDED, **_OPTIONAL}.items():
        if key not in definition and key in _OPTIONAL:
            continue
        value = definition.get(key)
        if type(value) is not kind:
            flaw = "is missing" if key not in definition else f"is {value!r:.60}"
            raise BadInput(f"is not a study of deepgen's: {key!r} {flaw}", where=where)
    for knob, values in definition["domains"].items():
        if not isinstance(values, list):
            raise BadInput(f"is not a study of deepgen's: the values of {knob!r:.60} are not a list", where=where)


def is_own_kernel(definition: Mapping[str, Any]) -> bool:
    """Whether the study holds the source of a user's kernel; studies of deepgen's families hold none."""
    from deepgen.kernels.own.family import NAME  # here: `status` does not need it

    return bool(definition["generator"] == NAME)


def signed_part(definition: Mapping[str, Any]) -> object:
    """The part of a study that is code: where its classes are found, and the source of a user's kernel."""
    code = definition.get("code")
    return {"code": code, "recipe": definition.get("recipe")} if is_own_kernel(definition) else code


def check_config(space: Space, config: Mapping[str, Any], where: str) -> None:
    """Raises BadInput unless each value is one that the generator itself gives its knob.

    Generators write these values into source text, so a journal must not bring other values.
    """
    domains = {knob.name: knob.values for knob in space.knobs}
    for name, value in config.items():
        plain = _tuples(value)
        if not any(plain == allowed and type(plain) is type(allowed) for allowed in domains.get(name, ())):
            raise BadInput(f"its config has {name!r:.60} = {value!r:.60}, which is not in the space", where=where)


def _tuples(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def check_trial(trial: Trial) -> Trial:
    """The trial itself; raises ValueError for one that no deepgen recorded."""
    measured = trial.measurement
    tables = (trial.config, trial.build_facts, measured.counters, measured.conditions)
    texts = (trial.kernel_id or "", measured.detail)
    good = all(isinstance(table, Mapping) for table in tables) and all(isinstance(text, str) for text in texts)
    good = good and all(_number(sample) and sample > 0 for sample in measured.samples)
    good = good and all(map(_number, measured.counters.values()))
    if not good or not (measured.error is None or _number(measured.error)):
        raise ValueError(f"trial {trial.id}")
    return trial


def check_finals(finals: dict[str, Any]) -> dict[str, Any]:
    """The finals themselves; raises KeyError, TypeError or ValueError for values that finals never contain."""
    rates = [finals.get("peak_gflops"), finals.get("bandwidth")]
    good = finals["winner"] is None or type(finals["winner"]) is int
    good = good and all(rate is None or (_number(rate) and rate >= 0) for rate in rates)
    for row in finals.get("finalists", []):
        good = good and type(row["trial"]) is int and _number(row["seconds"]) and row["seconds"] > 0
    for row in finals.get("baselines", []):
        ratio = row["ratio"]
        good = good and isinstance(row["name"], str) and _number(row["seconds"])
        good = good and len(row["interval"]) == 2 and all(map(_number, row["interval"]))
        good = good and (ratio is None or _number(ratio))
    for row in (*finals.get("dropped", []), *finals.get("baselines_lost", [])):
        good = good and isinstance(row["verdict"], str) and isinstance(row["detail"], str)
        good = good and ("trial" in row or "name" in row)
    waited = finals.get("waited") or {"seconds": 0.0, "by": None, "disturbed": None}
    good = good and _number(waited["seconds"]) and {"by", "disturbed"} <= set(waited)
    serves = finals.get("serves") or {}
    for sizes in serves.get("only") or ():
        good = good and all(name.isidentifier() and type(size) is int for name, size in sizes.items())
        good = good and isinstance(serves["why"], str)
    good = good and isinstance(serves.get("dense", ""), str)
    if not good or not isinstance(finals.get("ties", []), list):
        raise ValueError("its finals")
    return finals


def _number(value: Any) -> bool:
    return type(value) in (int, float)

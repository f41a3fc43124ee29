"""A study's definition, checked before use because the folder may come from someone else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import BadInput, Trial

if TYPE_CHECKING:
    from deepgen.generators import Generator
    from deepgen.space import Space

STRANGE = "contains data that deepgen did not write"
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
    "judged_by": dict,
    "rules": list,
}


def check(definition: Mapping[str, Any], where: str) -> None:
    """Raises BadInput if deepgen did not write this definition."""
    for key, kind in {**_NEEDED, **_OPTIONAL}.items():
        if key not in definition and key in _OPTIONAL:
            continue
        value = definition.get(key)
        if type(value) is not kind:
            flaw = "is missing" if key not in definition else f"is {value!r:.60}"
            raise BadInput(f"is not a deepgen study: {key!r} {flaw}", where=where)
    for knob, values in definition["domains"].items():
        if not isinstance(values, list):
            raise BadInput(f"is not a deepgen study: the values of {knob!r:.60} are not a list", where=where)


def is_own_kernel(definition: Mapping[str, Any]) -> bool:
    """Whether the study contains the source of a user's kernel, which studies of deepgen's families do not."""
    from deepgen.kernels import OWN_KERNELS  # imported late: `status` does not need it

    return bool(definition["generator"] == OWN_KERNELS)


def check_generator(definition: Mapping[str, Any], generator: Generator, where: str) -> None:
    """Raises BadInput if the generator is not the study's, or has other schedule rules of the user's."""
    if generator.name != definition["generator"]:
        what = f"{where} was tuned with generator {definition['generator']!r}"
        raise BadInput(what, allowed=f"use that one, not {generator.name!r}")
    rules = definition.get("rules", [])
    if getattr(generator, "asks", []) != rules:
        names = ", ".join(str(rule.get("name")) for rule in rules if isinstance(rule, dict))
        what = f"the schedule rules {names}" if names else "no schedule rules but deepgen's own"
        raise BadInput(f"{where} was tuned with {what}", allowed="the same ones")


def signed_part(definition: Mapping[str, Any]) -> object:
    """The part of a study that is code: the places of its classes, and the source of a user's kernel."""
    code = definition.get("code")
    return {"code": code, "recipe": definition.get("recipe")} if is_own_kernel(definition) else code


def check_config(space: Space, config: Mapping[str, Any], where: str) -> None:
    """Raises BadInput unless each value is in the domain that the generator gives its knob.

    Generators write these values into source text, so a journal must not introduce other values.
    """
    domains = {knob.name: knob.values for knob in space.knobs}
    for name, value in config.items():
        plain = _tuples(value)
        if not any(plain == allowed and type(plain) is type(allowed) for allowed in domains.get(name, ())):
            raise BadInput(f"its config has {name!r:.60} = {value!r:.60}, which is not in the space", where=where)


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, which JSON lacks."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def check_trial(trial: Trial) -> Trial:
    """The trial itself; raises ValueError if deepgen did not record it."""
    measured = trial.measurement
    tables = (trial.config, trial.build_facts, measured.counters, measured.conditions)
    texts = (trial.kernel_id or "", measured.detail)
    good = all(isinstance(table, Mapping) for table in tables) and all(isinstance(text, str) for text in texts)
    good = good and all(_number(sample) and sample > 0 for sample in measured.samples)
    good = good and all(map(_number, measured.counters.values()))
    if not good or not (measured.error is None or _number(measured.error)):
        raise ValueError(f"trial {trial.id}")
    return trial


def _number(value: Any) -> bool:
    return type(value) in (int, float)

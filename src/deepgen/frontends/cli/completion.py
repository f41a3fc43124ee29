"""Names that the shell completes and the help lists. Registries are imported only when their names are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

EVERY_FAMILY = "all"


def operators(incomplete: str) -> list[str]:
    """For the first word of a command; the shell completes files itself."""
    from deepgen.operators import OPERATORS

    return _starting(incomplete, OPERATORS.names())


def dtypes(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--dtype"]())


def strategies(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--strategy"]())


def families(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--family"]())


def baselines(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--baseline"]())


def targets(incomplete: str) -> list[str]:
    return _starting(incomplete, (f"{kind}:native" for kind in target_kinds()))


def target_kinds() -> tuple[str, ...]:
    from deepgen.targets import KINDS

    return ("cpu", *KINDS.names())


def _dtypes() -> Iterable[str]:
    from deepgen.vocabulary.dtypes import DTYPES

    return DTYPES


def _strategies() -> Iterable[str]:
    from deepgen.tuning.search import STRATEGIES

    return STRATEGIES.names()


def _families() -> Iterable[str]:
    from deepgen.generators import FAMILIES

    return (*FAMILIES.names(), EVERY_FAMILY)


def _baselines() -> Iterable[str]:
    from deepgen.baselines import BASELINES

    return BASELINES.names()


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--dtype": _dtypes,
    "--strategy": _strategies,
    "--family": _families,
    "--baseline": _baselines,
}


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

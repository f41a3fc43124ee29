"""`deepgen space`: the space of an operator on a target, or of a file: its knobs, requirements, size and examples."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepgen.frontends.cli import completion, options

if TYPE_CHECKING:
    from deepgen.space import Size, Space

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE... | show FILE",
        help="An operator, such as gemm MNK=1024, or `show FILE` for a space file, T1 file or legacy tuning config.",
        show_default=False,
        autocompletion=completion.operators,
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the definition to this file.", show_default=False)
]
SpaceStrategy = Annotated[
    int,
    typer.Option("--space-strategy", min=0, max=1, help="How to read a legacy tuning config: 0 or 1, as for `tune`."),
]
Why = Annotated[
    bool,
    typer.Option(
        "--why",
        help="Show which families support the operator, and why others do not. With --family rules: what each schedule "
        "rule answers.",
    ),
]
Removed = Annotated[
    bool,
    typer.Option("--removed", help="Count the points that each requirement removes; takes seconds in large spaces."),
]
SampleSize = Annotated[int, typer.Option("--sample", min=0, help="Number of example configs to show.")]
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed for the examples.")]


@options.taking(*options.OF_OPERATOR, "target", "one_family", "threads", after="output")
def space(
    words: Words,
    output: Output = None,
    space_strategy: SpaceStrategy = 1,
    why: Why = False,
    removed: Removed = False,
    sample: SampleSize = 3,
    seed: Seed = 0,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Count and describe a search space.

    It is that of an operator on a target, or of a file.
    """
    from deepgen.frontends.cli.output import print_json

    import_numpy()
    if why:
        _tell_why(words, values, as_json=as_json)
        return
    make = _reader(words, space_strategy) if words[0] == "show" else _generator(words, values)
    start = time.perf_counter()
    described = make()
    size = described.size() if described.uniform else None
    seconds = time.perf_counter() - start
    written = None if output is None else _save(described, output)
    about = _describe(described, size, seconds, sample, seed, removals=removed)
    about |= {} if written is None else {"file": written}
    if as_json:
        print_json(about)
    else:
        _print(described, about)


def _tell_why(words: list[str], values: Mapping[str, Any], *, as_json: bool) -> None:
    """For every family, why it does not serve the operator there; for one with rules, the answers of the rules."""
    from deepgen import generators, settings, targets
    from deepgen.frontends.cli import words as operator_words
    from deepgen.frontends.cli.output import print_json, print_rules, table
    from deepgen.kernels import AsksRules

    operator, _ = operator_words.parse(words, **options.of_operator(values))
    where = targets.resolve(values["target"] or settings.load().target)
    if values["family"] in generators.RULED:
        asked = generators.find(operator, where, values["family"])
        assert isinstance(asked, AsksRules)
        rules = asked.answers(operator, where, asked.default(operator, where))
        about = {"operator": operator.to_json(), "target": where.name, "rules": rules}
        print_json(about) if as_json else print_rules(f"{operator.describe()} on {where.name}", rules)
        return
    answers = {family.name: family.refuses(operator, where) for family in generators.families()}
    if as_json:
        print_json({"operator": operator.to_json(), "target": where.name, "refused": answers})
        return
    rows = [[name, reason or "supports it"] for name, reason in answers.items()]
    table(f"Families for {operator.describe()} on {where.name}", ["family", "answer"], rows)


def _reader(words: list[str], strategy: int) -> Callable[[], Space]:
    from deepgen.frontends import formats
    from deepgen.vocabulary.errors import BadInput

    if len(words) != 2:
        raise BadInput("show takes one file", allowed="deepgen space show FILE")
    document = formats.opened(Path(words[1]))
    return lambda: formats.space_of(document, strategy)


def _generator(words: list[str], values: Mapping[str, Any]) -> Callable[[], Space]:
    from deepgen import generators, settings, targets
    from deepgen.frontends.cli import words as operator_words

    operator, _ = operator_words.parse(words, **options.of_operator(values))
    where = targets.resolve(values["target"] or settings.load().target)
    generator = generators.find(operator, where, values["family"])

    def make() -> Space:
        whole = generator.space(operator, where)
        threads = values["threads"]
        return whole if threads is None else whole.restrict(generators.on_threads(generator, whole, threads))

    return make


def _save(described: Space, path: Path) -> str:
    """Write the definition; a file that already contains the same one is left unchanged."""
    from deepgen.frontends.cli.output import write_text
    from deepgen.vocabulary import BadInput, foreign

    with suppress(BadInput):
        held = foreign.read_json(path)
        if isinstance(held, dict) and held.get("fingerprint") == described.fingerprint():
            return f"{path} (reused: it already holds this space)"
    write_text(path, json.dumps(described.to_json(), indent=1) + "\n")
    return str(path)


def _describe(
    described: Space, size: Size | None, seconds: float, sample: int, seed: int, *, removals: bool
) -> dict[str, Any]:
    removed = {r.name: r for r in described.removed_by()} if removals else {}
    count = None if size is None else size.count
    examples = described.sample(min(sample, count) if count is not None else sample, seed) if count != 0 else []
    return {
        "name": described.name,
        "fingerprint": described.fingerprint(),
        "knobs": [
            {"name": k.name, "values": list(k.values)} | ({} if k.when is None else {"when": str(k.when)})
            for k in described.knobs
        ],
        "derived": {name: str(expr.args[0]) for name, expr in described.derivations.items()},
        "requirements": [
            {"name": r.name, "expression": str(r.expr)}
            | ({"removes_alone": gone.alone, "removes_of_the_rest": gone.only} if (gone := removed.get(r.name)) else {})
            for r in described.requirements
        ],
        "product": described.product_size(),
        "count": count,
        "exact": size is not None and size.exact,
        "relative_error": None if size is None else size.error,
        "uniform": described.uniform,
        "seconds": seconds,
        "empty_because": described.why_empty() if count == 0 else [],
        "examples": examples,
    }


def _print(described: Space, about: dict[str, Any]) -> None:
    from deepgen.frontends.cli.output import labelled, paragraph, table

    several = [k for k in about["knobs"] if len(k["values"]) > 1 or "when" in k]
    fixed = [f"{k['name']}={_value(k['values'][0])}" for k in about["knobs"] if k not in several]
    table(f"Space {described.name}", ["knob", "values"], [[k["name"], _domain(k)] for k in several])
    if fixed:
        paragraph("Fixed: " + ", ".join(fixed))
    _print_requirements(about["requirements"])
    print()
    size = _number(about["count"]) if about["exact"] or not about["uniform"] else str(described.size())
    paragraph(f"{size} valid configs of {about['product']:,}, in {about['seconds']:.3f} s")
    if about["uniform"] and not about["exact"]:
        paragraph("Too large to count: the number is an estimate.")
    if not about["uniform"]:
        paragraph("Too large to count: a solver samples configs, but not uniformly.")
    if about["empty_because"]:
        paragraph("No config satisfies: " + "; ".join(about["empty_because"]))
    shown = {k["name"] for k in several}
    for config in about["examples"]:
        labelled("", " ".join(f"{name}={_value(value)}" for name, value in config.items() if name in shown), indent=2)
    paragraph(f"Fingerprint {about['fingerprint'][:16]}" + (f", in {about['file']}" if "file" in about else ""))


def _print_requirements(requirements: list[dict[str, Any]]) -> None:
    from deepgen.frontends.cli.output import table

    if not requirements:
        return
    print()
    if "removes_alone" not in requirements[0]:
        table("Requirements", ["requirement"], [[r["name"]] for r in requirements])
        return
    table(
        "Requirements, and the points each removes: alone, and of those the others keep",
        ["alone", "of the rest", "requirement"],
        [[_number(r["removes_alone"]), _number(r["removes_of_the_rest"]), r["name"]] for r in requirements],
        right=["alone", "of the rest"],
    )


def _domain(knob: dict[str, Any]) -> str:
    values = ", ".join(map(_value, knob["values"]))
    return f"{values} when {knob['when']}" if "when" in knob else values


def _value(value: object) -> str:
    return "(" + " ".join(map(_value, value)) + ")" if isinstance(value, tuple) else str(value)


def _number(count: int | None) -> str:
    return "not counted" if count is None else f"{count:,}"


def import_numpy() -> None:
    """Import numpy with one thread: on many cores its threads take longer to start than counting a space, and disturb
    measurements.
    """
    if "numpy" in sys.modules:
        return
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
        else:
            os.environ[_BLAS_THREADS] = before

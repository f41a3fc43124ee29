"""Products on VTA: every program of the space is correct, its modules do not race, and broken ones are detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepgen import generators
from deepgen.operators import Operator, gemm
from deepgen.toolchains import BuildError, BuildLimits, Group
from deepgen.vocabulary import BadInput, Source, Verdict
from deepgen_vta.chip import parse_vta
from deepgen_vta.family import VtaRules
from deepgen_vta.program import Gemm, Load, Program, listing
from deepgen_vta.simulator import ProgramFault, check_races, execute, timeline
from deepgen_vta.toolchain import VtaToolchain

PYNQ = parse_vta("pynq")
FAMILY = VtaRules()


def product(m: int, n: int, k: int, layout: str = "nt") -> Operator:
    return gemm(m, n, k, dtype="i8", c="i32", layout=layout)


def program(operator: Operator, config: Any) -> Program:
    return Program.from_text(FAMILY.emit(operator, PYNQ, config).sources[0].text, "program.json")


@pytest.mark.parametrize("operator", [product(8, 32, 32), product(6, 40, 50, "nn"), product(5, 16, 96, "tt")], ids=str)
def test_programs_are_right_and_do_not_race(operator: Operator) -> None:
    space = FAMILY.space(operator, PYNQ)
    inputs = operator.inputs(1)
    want = operator.reference(inputs)["C"].values
    for config in [FAMILY.default(operator, PYNQ), *space.sample(12, seed=3)]:
        made = program(operator, config)
        told: Any = space.derived(config)
        assert len(made.instructions) == told["instructions"] and len(made.micro_ops) <= told["micro_ops"], config
        order = timeline(made, PYNQ)
        check_races(made, order, PYNQ)
        got = execute(made, order, PYNQ, inputs)["C"]
        assert (got[: want.shape[0], : want.shape[1]] == want).all(), config


def test_no_two_configs_make_the_same_program() -> None:
    operator = product(4, 32, 32)
    ids = [FAMILY.emit(operator, PYNQ, config).id for config in FAMILY.space(operator, PYNQ)]
    assert len(set(ids)) == len(ids) > 20


def test_a_program_without_its_tokens_races() -> None:
    operator = product(8, 32, 32)
    made = program(operator, FAMILY.default(operator, PYNQ))
    bare = replace(made, instructions=tuple(replace(one, waits=(), signals=()) for one in made.instructions))
    with pytest.raises(ProgramFault, match="race for the"):
        check_races(bare, timeline(bare, PYNQ), PYNQ)


@pytest.mark.parametrize("queue", ["load>compute", "compute>load", "compute>store", "store>compute"])
def test_every_queue_is_needed(queue: str) -> None:
    operator = product(8, 32, 64)
    config = {**FAMILY.default(operator, PYNQ), "TILE_ROWS": 2, "TILE_COLUMNS": 1, "OUTER": "rows"}
    made = program(operator, config)

    def without(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name != queue)

    changed = tuple(replace(o, waits=without(o.waits), signals=without(o.signals)) for o in made.instructions)
    assert changed != made.instructions
    raced = replace(made, instructions=changed)
    with pytest.raises(ProgramFault, match="race for the"):
        check_races(raced, timeline(raced, PYNQ), PYNQ)


def test_a_token_that_never_comes_is_no_endless_wait() -> None:
    operator = product(8, 32, 32)
    made = program(operator, FAMILY.default(operator, PYNQ))
    stuck = replace(made, instructions=tuple(replace(one, signals=()) for one in made.instructions))
    with pytest.raises(ProgramFault, match="never arrives"):
        timeline(stuck, PYNQ)


def test_virtual_threads_load_while_another_computes() -> None:
    operator = product(64, 64, 64)
    one = {
        "TILE_ROWS": 16, "TILE_COLUMNS": 4, "TILE_SUM": 1, "VIRTUAL_THREADS": 1,
        "OUTER": "columns", "INPUT_AT": "sum", "WEIGHT_AT": "sum",
    }  # fmt: skip
    single, double = (timeline(program(operator, {**one, "VIRTUAL_THREADS": n}), PYNQ).cycles for n in (1, 2))
    assert double < single


def test_a_program_that_leaves_a_buffer_is_not_built(tmp_path: Path) -> None:
    operator = product(8, 32, 32)
    kernel = FAMILY.emit(operator, PYNQ, FAMILY.default(operator, PYNQ))
    made = Program.from_text(kernel.sources[0].text, "program.json")
    load = next(one for one in made.instructions if isinstance(one, Load) and one.buffer == "input")
    outside = replace(load, to=PYNQ.depth("input"))
    broken = replace(made, instructions=(outside,)).to_text()
    strange = broken.replace('"load"', '"gemm"', 1), broken.replace('"rows": 8', '"rows": "8"', 1), '{"images": 3}'
    for text, says in ((broken, "leaves the input buffer"), *((text, "not a VTA program") for text in strange)):
        with Group() as group, pytest.raises(BuildError, match=says) as caught:
            source = (Source("program.json", text),)
            VtaToolchain().build(replace(kernel, sources=source), PYNQ, tmp_path, BuildLimits(), group)
        assert caught.value.verdict is Verdict.BUILD_FAILED


def test_programs_are_read_back_as_they_were_written() -> None:
    operator = product(4, 16, 32)
    made = program(operator, FAMILY.default(operator, PYNQ))
    assert Program.from_text(made.to_text(), "again") == made
    assert any(isinstance(one, Gemm) and one.reset for one in made.instructions)


def test_the_text_of_a_program(golden: Callable[[str, str], str]) -> None:
    operator = product(8, 32, 32)
    config = FAMILY.default(operator, PYNQ)
    text = FAMILY.schedule_text(operator, PYNQ, config) + "\n" + listing(program(operator, config))
    assert not (difference := golden("rules/vta_gemm.txt", text)), difference


UNSERVED = [gemm(8, 8, 8), gemm(8, 8, 8, batch=2, dtype="i8", c="i32"), product(8192, 8192, 8192)]


@pytest.mark.parametrize("operator", UNSERVED, ids=str)
def test_what_it_does_not_serve_is_refused_with_the_reason(operator: Operator) -> None:
    with pytest.raises(BadInput, match="no generator supports"):
        generators.find(operator, PYNQ)

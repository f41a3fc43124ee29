"""deepgen's own generators satisfy the suite, and the choice between them depends only on what they report."""

from __future__ import annotations

import itertools
import os
from math import inf

import pytest

from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.kernels import Compared, Rank, rank_of
from deepgen.operators import gemm
from deepgen.testing import GeneratorSuite
from deepgen.testing.problems import PROBLEMS
from deepgen.vocabulary import BadInput

# Cases that are faster with another family than with the first one.
FEW_ROWS = [gemm(m, 1024, 1024, dtype=dtype, layout=layout) for m in (1, 4, 5, 64) for dtype in ("bf16", "i8")
            for layout in ("nn", "nt")]  # fmt: skip
TARGETS = [
    "cpu", "x86:avx2", "x86:avx512", "arm:neon", "x86:avx512_bf16", "x86:amx", "cuda:sm_80", "cuda:sm_90a",
    "hip:gfx906", "riscv:rv64gcv_zvl256b", "sim", "vta",
]  # fmt: skip
SAMPLES = int(os.environ.get("DEEPGEN_SAMPLES", "5"))  # per space
CHIPS = {name: targets.resolve(name) for name in TARGETS}


class TestGenerators(GeneratorSuite):
    generators = generators.families()
    operators = PROBLEMS
    targets = TARGETS

    def is_tried(self, family: Generator, place: int, target: str) -> bool:
        """Kernels by rules take longer to emit, and support every operator: each problem is tried on one target.

        With constant weights the spaces are the same, so a few problems are enough.
        """
        if family.name == "rules_constant_weights":
            return target == "arm:neon" and place % 8 == 0
        return family.name != "rules" or target == ("arm:neon", "x86:avx512")[place % 2]

    def sampled(self, family: Generator) -> int:
        return min(SAMPLES, 2) if family.name == "rules" else SAMPLES


@pytest.mark.parametrize("target", TARGETS)
def test_the_order_of_those_that_serve_is_by_what_they_say_alone(target: str) -> None:
    """The list's order, except that those that yield come later, then those that support every kind of operator, and
    last those that are surpassed by these. If models predict times, the family with the fastest default comes first in
    its rank.
    """
    chip = CHIPS[target]
    for operator in (*PROBLEMS, *FEW_ROWS):
        serving = [f for f in generators.families() if f.refuses(operator, chip) is None]
        by_rank = [f for rank in Rank for f in serving if rank_of(f, operator, chip) is rank]
        compared = [f for f in by_rank if isinstance(f, Compared)]
        times = {f.name: f.modelled_seconds(operator, chip, f.default(operator, chip)) or inf for f in compared}
        for f in compared:
            assert 0 < f.least_seconds(operator, chip) < times[f.name]
        first = min((rank_of(f, operator, chip) for f in serving), default=None)
        for _ in range(2 if serving else 0):
            names = [f.name for f in generators.serving(operator, chip)]
            assert sorted(names) == sorted(f.name for f in serving)
            assert [n for n in names if n not in times] == [f.name for f in by_rank if f.name not in times]
            ahead = {f.name: times[f.name] for f in compared if rank_of(f, operator, chip) is first}
            assert not ahead or names[0] == min(ahead, key=lambda name: ahead[name])
            assert generators.find(operator, chip).name == names[0]


def test_who_yields_does_so_on_some_of_what_it_serves() -> None:
    """Yielding everywhere would simply be a later position in the list."""
    answers: dict[str, set[bool]] = {}
    for family, target in itertools.product(generators.families(), CHIPS.values()):
        for operator in (*PROBLEMS, *FEW_ROWS):
            if family.refuses(operator, target) is None:
                yields = rank_of(family, operator, target) is Rank.YIELDS
                answers.setdefault(family.name, set()).add(yields)
                assert not yields or generators.find(operator, target).name != family.name
    yielding = {name: seen for name, seen in answers.items() if True in seen}
    assert yielding and all(seen == {True, False} for seen in yielding.values()), answers


def test_no_generator_is_an_error_that_says_why() -> None:
    operator = gemm(8, 8, 8, dtype="f8e4m3")
    with pytest.raises(BadInput, match="no generator supports"):
        generators.find(operator, targets.resolve("cuda:sm_80"))

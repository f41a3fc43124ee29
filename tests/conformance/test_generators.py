"""deepgen's own generators satisfy the suite, and are chosen by what they say alone."""

from __future__ import annotations

import itertools

import pytest

from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.kernels.base import General, Surpassed, Yielding
from deepgen.operators import gemm
from deepgen.testing import GeneratorSuite
from deepgen.testing.problems import PROBLEMS
from deepgen.vocabulary import BadInput

# What is faster by another family than by the one that comes first.
FEW_ROWS = [gemm(m, 1024, 1024, dtype=dtype, layout=layout) for m in (1, 4, 5, 64) for dtype in ("bf16", "i8")
            for layout in ("nn", "nt")]  # fmt: skip
TARGETS = [
    "cpu", "x86:avx2", "x86:avx512", "arm:neon", "x86:avx512_bf16", "x86:amx", "cuda:sm_80", "cuda:sm_90a",
    "hip:gfx906", "riscv:rv64gcv_zvl256b", "sim", "vta",
]  # fmt: skip
CHIPS = {name: targets.resolve(name) for name in TARGETS}


class TestGenerators(GeneratorSuite):
    generators = generators.families()
    operators = PROBLEMS
    targets = TARGETS

    def is_tried(self, family: Generator, place: int, target: str) -> bool:
        """Kernels by rules take longer to emit, and serve every operator: each problem is tried on one target.

        With constant weights the spaces are the same, so that a few problems are enough.
        """
        if family.name == "rules_constant_weights":
            return target == "arm:neon" and place % 8 == 0
        return family.name != "rules" or target == ("arm:neon", "x86:avx512")[place % 2]

    def sampled(self, family: Generator) -> int:
        return 4 if family.name == "rules" else 25


@pytest.mark.parametrize("target", TARGETS)
def test_the_order_of_those_that_serve_is_by_what_they_say_alone(target: str) -> None:
    """The list's order, but those that yield come later, then those that serve every kind of operator, and last those
    that these surpass."""
    chip = CHIPS[target]
    for operator in (*PROBLEMS, *FEW_ROWS):
        serving = [f for f in generators.families() if f.refuses(operator, chip) is None]
        yielding = [f.name for f in serving if isinstance(f, Yielding) and f.yields(operator, chip)]
        general = [f.name for f in serving if isinstance(f, General) and f.general]
        last = [f.name for f in serving if isinstance(f, Surpassed) and f.surpassed(operator, chip)]
        wanted = [f.name for f in serving if f.name not in (*yielding, *general, *last)] + yielding + general + last
        for _ in range(2 if serving else 0):
            assert [f.name for f in generators.serving(operator, chip)] == wanted
            assert generators.find(operator, chip).name == wanted[0]


def test_who_yields_does_so_on_some_of_what_it_serves() -> None:
    """Everywhere would be a place in the list; to nobody would be nothing."""
    said: dict[str, set[bool]] = {}
    for family, target in itertools.product(generators.families(), CHIPS.values()):
        for operator in (*PROBLEMS, *FEW_ROWS):
            if isinstance(family, Yielding) and family.refuses(operator, target) is None:
                said.setdefault(family.name, set()).add(family.yields(operator, target))
                first = generators.find(operator, target)
                assert first.name != family.name or not family.yields(operator, target)
    assert said and all(answers == {True, False} for answers in said.values()), said


def test_no_generator_is_an_error_that_says_why() -> None:
    operator = gemm(8, 8, 8, dtype="f8e4m3")
    with pytest.raises(BadInput, match="no generator serves"):
        generators.find(operator, targets.resolve("cpu"))

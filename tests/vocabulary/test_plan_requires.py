"""The shapes that a launch plan declares its kernel to serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deepgen import targets
from deepgen.operators import gemm
from deepgen.run.call.loaded import load
from deepgen.run.call.plans import check_shape
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

ONES = "void ones(float *c, int count) { for (int i = 0; i < count; ++i) c[i] = 1.0f; }\n"
STEP = Step("ones", (TensorArg("C"), ScalarArg("i32", "M * N")))
ANY = Kernel("ones", "c", (Source("ones.c", ONES),), ("-O1",), LaunchPlan((STEP,)))
EVEN = replace(ANY, plan=replace(ANY.plan, requires=(("M % 2 == 0 and K <= 64", "an even M and a K up to 64"),)))


def test_requirements_come_back_from_json() -> None:
    assert Kernel.from_json(EVEN.to_json()) == EVEN
    assert EVEN.id != ANY.id


def test_a_kernel_without_requirements_keeps_its_id_and_its_older_json() -> None:
    assert "requires" not in ANY.to_json()["plan"]  # type: ignore[operator]
    assert ANY.id == "c6d097d488f90cb1c063b6d905791de78bed851473172ad74794fa7fd002a0f8"
    assert Kernel.from_json(ANY.to_json()).plan.requires == ()


def test_what_sources_and_flags_imply_is_kept_and_changes_no_id() -> None:
    even = replace(ANY, implied=EVEN.plan.requires)
    assert Kernel.from_json(even.to_json()) == even
    assert even.id == ANY.id and even.requirements == EVEN.requirements
    with pytest.raises(BadInput, match="an even M"):
        check_shape(even, gemm(3, 3, 4).scalars())


def test_a_shape_that_is_not_served_is_refused_in_words() -> None:
    check_shape(EVEN, gemm(4, 3, 64).scalars())
    with pytest.raises(BadInput, match=r"M=3, K=4.*an even M and a K up to 64"):
        check_shape(EVEN, gemm(3, 3, 4).scalars())
    check_shape(ANY, gemm(3, 3, 4).scalars())


def test_a_loaded_kernel_refuses_such_arrays_and_serves_the_others() -> None:
    call = load(EVEN, gemm(4, 4, 4), targets.resolve("cpu"))
    zeros = {shape: np.zeros(shape, np.float32) for shape in ((4, 8), (8, 4), (3, 8))}
    for _ in range(2):
        assert call(zeros[4, 8], zeros[8, 4]).sum() == 16
        with pytest.raises(BadInput, match="an even M"):
            call(zeros[3, 8], zeros[8, 4])

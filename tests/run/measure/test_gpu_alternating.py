"""Alternating inputs on a GPU, with a driver over host memory: kernels that cache results by address are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import ARGUMENTS, FLOATS, kernel, reference, supervised

from deepgen.operators import gemm
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Artifact, Kernel, ScalarArg, Step, TensorArg, Verdict, WorkspaceArg

OPERATOR = gemm(24, 20, 16, layout="nt")

_SAME = "static void *a, *b, *c; int same = a == A && b == B && c == C; a = A, b = B, c = C;"
_RESULT = """
    static float kept[480];
    if (same) __builtin_memcpy(C, kept, sizeof kept);
    else __builtin_memcpy(kept, C, sizeof kept);
"""
_FIRST = "static float x, y; same = same && x == A[0] && y == B[0]; x = A[0], y = B[0];"
_MULTIPLY = """
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += A[i * lda + k] * packed[j * K + k];
            C[i * ldc + j] = sum;
        }
"""
_PACKED_B = f"static float packed[320]; if (!same) __builtin_memcpy(packed, B, sizeof packed); {_MULTIPLY}"
_PREPARED = f"const float* packed = *(float**)p[9]; {_MULTIPLY}"
_PACK = """
int pack(void** p, const unsigned* grid, const unsigned* block) {
    __builtin_memcpy(*(void**)p[1], *(void**)p[0], 4 * *(int*)p[2]);
    return 0;
}
"""
STALE = {
    "result": _SAME + _RESULT,
    "first_element": _SAME + _FIRST + _RESULT,
    "packed_b": _SAME + _PACKED_B,
    "once_timed": "static int n; n++;" + _SAME + "same = same && n > 2;" + _RESULT,
}


@pytest.fixture(scope="module", params=["host", "device"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    folder = tmp_path_factory.mktemp("turns")
    helpers = {"reference": reference(OPERATOR, folder)} if request.param == "device" else {}
    with supervised(OPERATOR, folder, **helpers) as made:
        yield made


def prepared(folder: Path, name: str, more: str = "") -> tuple[Kernel, Artifact]:
    """A kernel that packs B ahead of time, with `more` appended to each run."""
    made, artifact = kernel(folder, name, _PREPARED + more, FLOATS + _PACK)
    packed = WorkspaceArg("packed", "4 * N * K")
    ahead = Step("pack", (TensorArg("B"), packed, ScalarArg("i32", "N * K")))
    step = replace(made.plan.steps[0], args=(*ARGUMENTS, packed))
    return replace(made, plan=replace(made.plan, steps=(step,), prepare=(ahead,))), artifact


@pytest.mark.parametrize("name", STALE)
def test_what_is_kept_by_address_is_wrong(name: str, runner: Supervisor, tmp_path: Path) -> None:
    measured = runner.measure(*kernel(tmp_path, name, STALE[name]))
    assert measured.verdict is Verdict.WRONG, measured.detail
    assert "overwritten in place" in measured.detail


def test_what_is_prepared_may_be_kept_and_nothing_else(runner: Supervisor, tmp_path: Path) -> None:
    right = runner.measure(*prepared(tmp_path, "prepared"))
    assert right.ok and right.conditions["reproducible"], right.detail
    assert runner.measure(*prepared(tmp_path, "stale", _SAME + _RESULT)).verdict is Verdict.WRONG
    assert runner.verify(*prepared(tmp_path, "again"), 3, "normal").ok


def test_an_input_that_a_later_run_writes_to_is_missed_no_more_than_before(runner: Supervisor, tmp_path: Path) -> None:
    """Although it is rewritten after that run."""
    measured = runner.measure(*kernel(tmp_path, "late", "static int n; if (n++ == 2) ((float*)B)[5] += 1.f;"))
    assert measured.verdict is Verdict.WRONG
    assert "not on call 3: wrote to its input B (at byte 20)" in measured.detail


def test_right_kernels_are_right_on_both_sets(runner: Supervisor, tmp_path: Path) -> None:
    right = kernel(tmp_path, "right")
    measured = runner.measure(*right)
    assert measured.ok and measured.conditions["reproducible"], measured.detail
    assert runner.verify(*right, 4, "normal").ok and runner.verify(*right, 5, "special").ok

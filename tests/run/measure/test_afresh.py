"""The last check: a loaded kernel in a fresh process, on inputs not used before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen import targets
from deepgen.operators import gemm, record
from deepgen.run.measure.afresh import called_afresh, refusal
from deepgen.vocabulary import Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
OPERATOR = gemm(37, 29, 13)
_RIGHT = "multiply(A, B, C, M, N, K);"
_READ = """
static int shown(const char *file, const char *word) {
    static char text[1 << 16];
    FILE *f = fopen(file, "r");
    size_t count = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    return memmem(text, count, word, strlen(word)) != 0;
}
"""


@pytest.mark.parametrize(
    ("body", "before", "verdict", "says"),
    [
        pytest.param(_RIGHT, "", Verdict.CORRECT, "", id="right"),
        pytest.param(_RIGHT + "C[3] += 1;", "", Verdict.WRONG, "call 1: C[0, 3] is", id="wrong"),
        pytest.param(
            f"if (calls == 1) {{ {_RIGHT} }}", "", Verdict.WRONG, "call 2: C[0, 0] is", id="keeps old results"
        ),
        pytest.param("abort();", "", Verdict.CRASHED, "signal 6", id="crash"),
        pytest.param("exit(0);", "", Verdict.CRASHED, "the process ended", id="exit"),
        pytest.param("for (;;) sleep(1);", "", Verdict.TIMED_OUT, "a call did not finish within 10 s", id="hang"),
        pytest.param(
            # Python itself may lie in a folder of that name: a clone's.
            'if (!shown("/proc/self/environ", "DEEPGEN") && !shown("/proc/self/cmdline", "deepgen.")'
            f' && !shown("/proc/self/cmdline", "deepgen/run")) {{ {_RIGHT} }}',
            _READ,
            Verdict.CORRECT,
            "",
            id="nothing tells whose process it is",
        ),
    ],
)
def test_each_gets_its_verdict(
    body: str, before: str, verdict: Verdict, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPGEN_SETTINGS", str(tmp_path / "nowhere"))
    suspect = kernel(body, before)
    limit = 10.0 if verdict is Verdict.TIMED_OUT else 60.0
    measured = called_afresh(suspect, build(suspect), OPERATOR, TARGET, 77, seconds=limit)
    assert measured.verdict is verdict and says in measured.detail, measured


def test_a_shape_that_it_does_not_serve_is_refused_in_words() -> None:
    suspect = kernel(_RIGHT)
    requires = [("M == 1", "it supports one row only")]
    measured = called_afresh(suspect, build(suspect), OPERATOR, TARGET, 77, requires)
    assert measured.verdict is Verdict.REFUSED and "one row only" in measured.detail


def test_only_where_there_is_a_reference_and_a_way_to_call() -> None:
    assert refusal(OPERATOR, TARGET) is None
    assert "too large" in str(refusal(gemm(1 << 15, 1 << 15, 64), TARGET))
    assert "not available here" in str(refusal(record(OPERATOR), TARGET))
    assert "not called from Python" in str(refusal(OPERATOR, targets.resolve("sim")))

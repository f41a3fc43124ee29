"""Parallel tests are reported like sequential ones, and a worker that dies fails only the test it was running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import pytest
from side_by_side import SideBySide

def pytest_configure(config):
    config.pluginmanager.register(SideBySide(2, lambda nodeid: nodeid.partition("::")[0], "test_urgent.py"))

@pytest.fixture(scope="session")
def shared():
    yield 1
    raise OSError("could not be taken down")
"""
TESTS = {
    "test_dies": """
import os, warnings, pytest
COLLECTED = os.getpid()
def test_before(tmp_path):
    assert os.getppid() == COLLECTED and "worker" in str(tmp_path)
    print("seen once")
    warnings.warn("of a worker", DeprecationWarning)
def test_dies(): os.kill(os.getpid(), 9)
def test_after(capfd):
    os.write(1, b"apart")
    assert capfd.readouterr().out == "apart"
""",
    "test_fails": """
import pytest
def test_wrong():
    print("its output")
    assert 1 == 2
def test_left_out(): pytest.skip("a reason")
def test_expected():
    pytest.xfail("known")
""",
    "test_shares": "def test_first(shared): pass\ndef test_second(shared): pass",
}


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.format(tests=str(Path(__file__).parent)))
    pytester.makepyfile(**TESTS)
    return pytester


def test_what_became_of_each_is_told(run: pytest.Pytester) -> None:
    done = run.runpytest_subprocess("-rsx", "-v")
    assert done.parseoutcomes() == {
        "passed": 4, "failed": 2, "skipped": 1, "xfailed": 1, "warnings": 1, "errors": 1,
    }  # fmt: skip
    assert done.ret == 1
    text = done.stdout.str()
    for part in (
        "assert 1 == 2", "its output", "a reason", "known", "DeprecationWarning: of a worker",
        "the process that ran test_dies.py::test_dies ended with exit code -9", "could not be taken down",
    ):  # fmt: skip
        assert part in text
    assert "seen once" not in text


def test_enough_failures_end_all(run: pytest.Pytester) -> None:
    run.makepyfile(test_aa="import time\ndef test_waits(): time.sleep(600)")
    done = run.runpytest_subprocess("-x", "-k", "waits or wrong")
    assert done.parseoutcomes() == {"failed": 1, "deselected": 7} and "stopping after 1 failures" in done.stdout.str()


def test_what_cannot_be_collected_is_told_and_nothing_runs(run: pytest.Pytester) -> None:
    run.makepyfile(test_broken="import nothing_such")
    assert run.runpytest_subprocess().parseoutcomes() == {"errors": 1}
    assert "seen once" not in run.runpytest_subprocess("--collect-only").stdout.str()


def test_urgent_tests_have_priority(run: pytest.Pytester) -> None:
    priority = "import os\ndef test_priority(): assert os.nice(0) {} {}"
    run.makepyfile(test_urgent=priority.format("==", os.nice(0)), test_other=priority.format(">", os.nice(0)))
    assert run.runpytest_subprocess("-k", "priority").parseoutcomes() == {"passed": 2, "deselected": 8}

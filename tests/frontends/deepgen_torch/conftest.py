"""Calls reach a library's kernels through C++ or, without a C++ compiler, through Python: with the same results."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

IN_C, IN_PYTHON = "C++", "Python"
BOTH = ("test_use", "test_states", "test_torch_threads", "test_torch_convolutions")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH and "in_python" not in metafunc.fixturenames:
        metafunc.parametrize("way", (IN_C, IN_PYTHON), indirect=True)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine without a C++ compiler."""
    from deepgen.frontends.torch import dispatching

    monkeypatch.setattr(dispatching, "core", lambda: None)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> str:
    """For C++, only a missing compiler or missing headers allow a skip: an error in the sources is a failure."""
    want: str = getattr(request, "param", "")
    if want == IN_PYTHON:
        request.getfixturevalue("in_python")
    elif want == IN_C:
        from deepgen.frontends.torch import dispatching

        if dispatching.core() is None:
            there = shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").exists()
            assert not there, "it cannot be built"
            pytest.skip("there is no C++ compiler here, or no headers of Python's")
    return want

"""`make test` is what CI runs: it installs whatever a test imports, and runs all tests whatever the first ones find."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LEFT_OUT = {
    "torch": "the Makefile installs it itself, as a build without GPU libraries where there is one",
    "peers": "benchmarks compare with them; no test imports them",
}
# Modules whose packages have other names.
PACKAGES = {"tvm": "apache-tvm", "vl_convert": "vl-convert-python", "sklearn": "scikit-learn"}


def packages(extra: str) -> set[str]:
    """What an extra installs, through the extras that it names."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        name, inner = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?.*", requirement).groups()  # type: ignore[union-attr]
        if name == PROJECT["name"]:
            found.update(*map(packages, inner.split(",")))
        else:
            found.add(name.lower().replace("_", "-"))
    return found


def guarded() -> dict[str, set[str]]:
    """Modules without which some test is skipped, and the files that say so."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if "importorskip" not in text and "find_spec" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in ("importorskip", "find_spec"):
                    found.setdefault(str(node.args[0].value).split(".")[0], set()).add(path.name)
    return found


def commands(goal: str, folder: Path) -> str:
    """What `make GOAL` would do in a clean clone."""
    dry = ["make", "--dry-run", "--always-make", f"VENV={folder}/venv", goal]
    return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_extra_is_installed_for_the_tests() -> None:
    forgotten = {extra for extra in EXTRAS if extra not in LEFT_OUT and not packages(extra) <= packages("dev")}
    assert not forgotten, f"`dev` in pyproject.toml lacks {forgotten}; name them there, or here with a reason"


def test_whatever_tests_ask_for_is_installed() -> None:
    modules = guarded()
    assert {"torch", "triton", "altair", "ray"} <= modules.keys()
    installed = packages("dev") | {"torch"}
    lacking = {
        name: where for name, where in modules.items() if PACKAGES.get(name, name).replace("_", "-") not in installed
    }
    assert not lacking, f"tests would be skipped in what `make test` installs: {lacking}"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_tests_get_all_of_it_and_the_demo_the_core_alone(tmp_path: Path) -> None:
    for_tests, for_demo = commands("test", tmp_path), commands("demo", tmp_path)
    assert "-e '.[dev]'" in for_tests and "torch==" in for_tests
    assert re.findall(r"(?m)^\S+ -m pip install .*-e (.+)", for_demo) == ["."] and "torch" not in for_demo


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("first", "second"), [(1, 0), (0, 1), (0, 0)])
def test_both_parts_run_and_the_worse_counts(tmp_path: Path, first: int, second: int) -> None:
    """In an environment whose Python writes down what it is called with."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f"""#!/bin/sh
echo "$@" >>{tmp_path}/called
case "$*" in *"not slow"*) exit {first} ;; *) exit {second} ;; esac
""")
    python.chmod(0o755)
    for stamp in ("core", "dev"):
        (tmp_path / stamp).touch()
    done = subprocess.run(["make", f"VENV={tmp_path}", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [re.split(r" -(?:-workers|rs)\b", line)[0] for line in (tmp_path / "called").read_text().splitlines()] == [
        "-m pytest -m not slow and not quiet",
        "-m pytest -m quiet",
    ]
    assert (done.returncode != 0) is bool(first or second), done.stdout


def test_ci_runs_the_same_command() -> None:
    script = (ROOT / ".ci/run").read_text()
    parts = re.findall(r"^make (?:-j2 )?(.*) \|\| status", script, re.MULTILINE)
    assert parts == [".venv/bare/core", "lint types test", "slow bare"]
    assert "pip install" not in script and "EXTRAS" not in script
    assert re.search(r"^check: lint types test slow bare$", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_every_test_is_in_one_part(tmp_path: Path) -> None:
    parts = re.findall(r'-m "?((?:not )?(?:slow|quiet)[\w ]*)', commands("test", tmp_path) + commands("slow", tmp_path))
    for slow in (False, True):
        for quiet in (False, True):
            marks = {"slow": slow, "quiet": quiet}
            ran = [all(marks[term.split()[-1]] != term.startswith("not ") for term in p.split(" and ")) for p in parts]
            assert sum(ran) == 1, (parts, marks)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_ci_tries_the_core_alone_too(tmp_path: Path) -> None:
    """Its environment has nothing but what the core asks for."""
    tried = commands("bare", tmp_path)
    assert f"{tmp_path}/venv/bare/bin/python tests/bare.py" in tried
    installs = [line for line in tried.splitlines() if "install" in line and "venv/bare/bin" in line]
    assert installs and all(re.search(r"-e \.(?: |$)", line) for line in installs)


def test_one_sentence_says_which_programs_are_missing(tmp_path: Path) -> None:
    """Where the search path has bash alone, all are but those that are looked for by their place."""
    (tmp_path / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    bash = [str(tmp_path / "bash"), str(ROOT / ".ci/missing")]
    said, named = (
        subprocess.run([*bash, *more], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True).stdout
        for more in ([], ["--packages"])
    )
    assert said.startswith("Tests that need gcc, g++, clang-19, ") and said.count("\n") == 1
    assert {"gcc", "qemu-user", "chromium", "cmake"} <= {*named.split()} and named.strip() in said

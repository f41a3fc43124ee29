"""The faster start-up of test processes changes nothing that they see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import dataclasses, sys
@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
one = Point(1)
try:
    one.x = 3
except dataclasses.FrozenInstanceError as error:
    print(one, one == Point(1, 2), {one: 1}[Point(1)], dataclasses.replace(one, y=4), error)
print(getattr(dataclasses, "exec", None) is not None)
"""


def printed(folder: Path | None) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder or "")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "kept", [None, b"", b"junk", b"[\x01\x00\x00\x00N"], ids=["nothing", "empty", "junk", "a list"]
)
def test_dataclasses_are_what_they_were_whatever_is_kept(tmp_path: Path, kept: bytes | None) -> None:
    (tmp_path / "sitecustomize.py").write_bytes((Path(__file__).parent / "quick" / "sitecustomize.py").read_bytes())
    file = tmp_path / "__pycache__" / f"methods.{sys.implementation.cache_tag}"
    if kept is not None:
        file.parent.mkdir()
        file.write_bytes(kept)
    shown, _ = printed(None)
    assert [printed(tmp_path) for _ in range(2)] == [[shown, "True"]] * 2


@pytest.mark.parametrize(("hurry", "shown"), [("", "True"), ("1", "0.0 0.05 0.02 False")])
def test_only_programs_in_a_hurry_wait_for_nothing(monkeypatch: pytest.MonkeyPatch, hurry: str, shown: str) -> None:
    monkeypatch.setenv("TESTS_HURRY", hurry)
    limits = "base.CALM_SECONDS, base.RACE_SECONDS, base.CALLS_SECONDS, crowning.LAST_CALLS"
    asked = limits if hurry else "base.CALM_SECONDS > 1 and crowning.LAST_CALLS"
    text = f"from deepgen.run.measure import base\nfrom deepgen.tuning.finals import crowning\nprint({asked})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown

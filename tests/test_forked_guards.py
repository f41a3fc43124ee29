"""A forked guard behaves like one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from build_helpers import alive, until

from deepgen.toolchains import Group, group
from forked_guards import Guards


def marked(mark: str) -> subprocess.Popen[bytes]:
    words = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(["sleep", "1000"], env={**os.environ, "DEEPGEN_BUILD_GROUP": mark}, **words)


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "subprocess", Guards())


def test_compilers_die_with_who_began_them(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    if (builder := os.fork()) == 0:
        building = Group()
        compiler = building.start(lambda: marked(*building.mark.values()))
        note.write_text(f"{compiler.pid}.")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(builder, 0)
    compiler = int(note.read_text().rstrip("."))
    assert until(lambda: not alive(compiler))


def test_it_watches_until_its_group_is_closed() -> None:
    with Group() as building:
        mark, *_ = building.mark.values()
        for _ in range(2):
            with building.start(lambda: marked(mark)) as one:
                one.kill()
        watching = building._guard
        assert watching is not None and not watching.ended
        output = watching._process.stdout
    assert building._guard is None and output is not None and output.closed

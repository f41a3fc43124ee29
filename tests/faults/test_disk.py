"""A disk that fills up and a folder that is not writable: one sentence, and no measurement is lost.

The disks are separate small ones, mounted privately.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def private(script: str, folder: Path) -> list[str]:
    """A command that privately mounts a small disk on a folder and runs a program."""
    mount = f'mount -t tmpfs -o size=24m disk "{folder}" && exec "{sys.executable}" -c "$0" "{folder}"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, script]


def _possible(tmp: Path) -> bool:
    try:
        return subprocess.run(private("", tmp), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _possible(folder):
        pytest.skip("small disks cannot be mounted here")
    return folder


# Shared by the scripts. They run inside the private mount; their observations go to stdout.
_COMMON = """
import errno, json, os, subprocess, sys, time
from pathlib import Path
from deepgen.tuning import Study
from deepgen.vocabulary import DeepgenError
disk = Path(sys.argv[1])
os.environ["COLUMNS"] = "80"
TUNE = ["tune", "gemm", "MNK=128", "--target", "sim:measure_seconds=0.02", "--strategy", "random", "--trials", "150",
        "--out", str(disk / "studies"), "--json"]
def start(*words):
    command = [sys.executable, "-m", "deepgen", *words]
    return subprocess.Popen(command, cwd=disk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
def end(process):
    out, err = process.communicate(timeout=600)
    return {"code": process.returncode, "out": out, "err": err}
def trials():
    for folder in (disk / "studies").glob("*"):
        try:
            return [[t.id, t.rank, t.measurement.verdict.value] for t in Study.open(folder).trials()]
        except DeepgenError:
            return []
    return []
def fill():
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
seen = {}
"""

FULL = (
    _COMMON
    + """
if {everything}:
    os.environ["XDG_CACHE_HOME"], os.environ["TMPDIR"] = str(disk / "cache"), str(disk)
process = start(*TUNE)
while process.poll() is None and len(trials()) < 20:
    time.sleep(0.1)
fill()
seen["stopped"] = end(process)
seen["kept"] = trials()
seen["top"] = end(start("top", str(disk / "studies"), "--json"))
seen["again"] = end(start(*TUNE))
seen["still"] = trials()
(disk / "ballast").unlink()
seen["done"] = end(start(*TUNE))
seen["trials"] = trials()
print(json.dumps(seen))
"""
)

READ_ONLY = (
    _COMMON
    + """
seen["made"] = end(start(*TUNE[:-3], "--trials", "20", *TUNE[-3:]))
seen["kept"] = trials()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
seen["more"] = end(start(*TUNE))
seen["other"] = end(start(*TUNE, "--seed", "5"))
seen["top"] = end(start("top", str(disk / "studies"), "--json"))
seen["status"] = end(start("status", str(disk / "studies"), "--json"))
subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
seen["done"] = end(start(*TUNE))
seen["trials"] = trials()
print(json.dumps(seen))
"""
)


def watch(script: str, disk: Path) -> dict[str, Any]:
    done = subprocess.run(private(script, disk), capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def refused(said: dict[str, Any], *words: str, cache: bool = False) -> None:
    """It ended with one sentence that contains these words.

    If the `cache` is also on that disk, one about it may come first: a build can hit the full disk before the journal.
    """
    assert said["code"] == 1, said
    assert said["out"] == ""
    *before, sentence = said["err"].strip().splitlines()
    assert not before or (cache and len(before) == 1 and before[0].startswith("The cache folder")), before
    assert all(word in sentence for word in words), sentence


def whole(seen: dict[str, Any]) -> None:
    """The study completed, and contains everything it had before."""
    assert seen["done"]["code"] == 0, seen["done"]["err"]
    assert [t[0] for t in seen["trials"]] == list(range(150))
    assert len({t[1] for t in seen["trials"]}) == 150
    assert all(t in seen["trials"] for t in seen["kept"])
    assert {t[2] for t in seen["trials"]} <= {"correct", "not_run"}, "no kernel is blamed for the disk"


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["journal", "journal, cache and temporary files"])
def test_a_disk_that_fills_up_ends_the_run_and_loses_nothing(disk: Path, everything: bool) -> None:
    seen = watch(FULL.replace("{everything}", str(everything)), disk)
    refused(seen["stopped"], *([] if everything else ["full", "free some space"]), cache=everything)
    refused(seen["again"], cache=everything)
    assert len(seen["kept"]) >= 20
    assert seen["top"]["code"] == 0, seen["top"]["err"]
    assert seen["still"] == seen["kept"]
    whole(seen)


@pytest.mark.slow
def test_a_folder_that_may_only_be_read_is_said_and_can_be_read(disk: Path) -> None:
    seen = watch(READ_ONLY, disk)
    refused(seen["more"], str(disk), "Read-only", "--out")
    refused(seen["other"], str(disk), "Read-only", "--out")
    assert len(json.loads(seen["top"]["out"])["top"]) == 10
    [row] = json.loads(seen["status"]["out"])["studies"]
    assert row["state"] == "finished"
    whole(seen)

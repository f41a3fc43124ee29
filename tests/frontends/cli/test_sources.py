"""`show --source` and `build` write files that the system's compiler builds into the same kernel."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CHOSEN = ("gemm", "MNK=16", "--target", "cpu", "--family", "c_gemm", "--threads", "1")


def _rebuild(folder: Path, empty: Path, names: list[str], binary: str = "kernel.so") -> bytes:
    """Build only the listed files, in a separate folder."""
    empty.mkdir()
    for name in names:
        (empty / name).write_bytes((folder / name).read_bytes())
    subprocess.run(["sh", str(empty / "build.sh")], cwd=empty.parent, check=True)
    return (empty / binary).read_bytes()


def test_what_build_writes_builds_the_same_binary(deepgen: Callable, project: Path) -> None:
    assert deepgen("build", *CHOSEN, "-o", "out").code == 0
    files = json.loads((project / "out" / "build.json").read_text())["files"]
    assert "build.sh" in files["source"]
    again = _rebuild(project / "out", project / "empty", files["source"])
    assert again == (project / "out" / files["binary"]).read_bytes()
    ctypes.CDLL(str(project / "empty" / "kernel.so"))


@pytest.mark.parametrize(("target", "binary"), [("cuda:sm_80", "kernel.cubin"), ("hip:gfx90a", "kernel.hsaco")])
def test_kernels_for_gpus_are_built_by_their_script_too(
    deepgen: Callable, project: Path, target: str, binary: str
) -> None:
    said = deepgen("build", "gemm", "MNK=64", "--family", "simt_gemm", "--target", target, "-o", "out")
    if said.code == 1 and "is missing" in said.err:
        pytest.skip(said.err)
    assert said.code == 0, said.err
    files = json.loads((project / "out" / "build.json").read_text())["files"]
    again = _rebuild(project / "out", project / "empty", files["source"], binary)
    # clang puts a hash of the folder into a symbol; the code does not depend on it.
    assert _code(again) == _code((project / "out" / files["binary"]).read_bytes())


def _code(image: bytes) -> list[bytes]:
    """The sections of an ELF file that hold machine code."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    rows = [struct.unpack_from("<QQQQ", image, table + i * size + 8) for i in range(count)]
    return [image[at : at + length] for flags, _, at, length in rows if flags & 4]


def test_the_winners_source_builds_the_winner(deepgen: Callable, project: Path) -> None:
    study = deepgen("tune", *CHOSEN, "--trials", "1", "--json").json()["study"]
    said = deepgen("show", study, "--source", "-o", "out")
    assert said.code == 0 and said.out.startswith("written to out: ") and "build.sh" in said.out
    names = [path.name for path in (project / "out").iterdir()]
    again = _rebuild(project / "out", project / "empty", names)
    assert again == (Path(study) / "winner" / "kernel.so").read_bytes()
    shown = deepgen("show", study, "--source").out
    assert all(f"==> {name} <==\n" in shown for name in names)


def test_a_folder_without_source_is_refused(deepgen: Callable) -> None:
    assert deepgen("show", "nothing", "-o", "out").code == 2

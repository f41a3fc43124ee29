"""Bundles as files: exactly what was packed is unpacked, whatever the archive claims."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.vocabulary import BadInput

FILES: dict[str, bytes | Path] = {"run.py": b"print('hello')\n", "kernels/3.so": bytes(range(256)) * 100}


def listing(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def forged(path: Path, listed: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """An archive whose list does not match its contents."""
    text = json.dumps({"format": bundle_archive.FORMAT, "files": listed}).encode()
    with tarfile.open(path, "w:gz") as tar:
        for entry, content in [(member("b/manifest.json", text), text), *members]:
            tar.addfile(entry, io.BytesIO(content))
    return path


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = len(content), kind, link
    return entry


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.zst"])
def test_what_is_packed_comes_out_again(tmp_path: Path, suffix: str) -> None:
    if suffix == ".tar.zst":
        pytest.importorskip("zstandard")
    archive = tmp_path / f"gemm{suffix}"
    written = bundle_archive.write(archive, {"name": "a study"}, FILES)
    folder = bundle_archive.unpack(archive, tmp_path)
    assert folder == tmp_path / "gemm"
    manifest, identity = bundle_archive.read_manifest(folder)
    assert identity == written and manifest["name"] == "a study"
    for name, content in FILES.items():
        assert (folder / name).read_bytes() == content
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def test_the_same_kernels_give_the_same_archive(tmp_path: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        bundle_archive.write(tmp_path / folder / "b.tar.gz", {}, FILES)
        texts.append((tmp_path / folder / "b.tar.gz").read_bytes())
    assert texts[0] == texts[1]


def test_without_zstd_the_other_suffix_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(bundle_archive.importlib, "import_module", missing)
    with pytest.raises(Exception, match=r"pip install zstandard.*\.tar\.gz"):
        bundle_archive.write(tmp_path / "b.tar.zst", {}, FILES)
    assert not list(tmp_path.iterdir())


def _plain(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member("b/x", b"good"), io.BytesIO(b"good"))
    return path


def _bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _cut(path: Path) -> Path:
    bundle_archive.write(path, {}, FILES)
    return _bytes(path, path.read_bytes()[:-200])


def _bomb(path: Path) -> Path:
    """It is refused because of the sizes it lists, before its first file is read."""
    return forged(path, {f"x{i}": {"bytes": 64 << 20, "sha256": "0" * 64} for i in range(5)}, [])


def _long_record(path: Path) -> Path:
    """A record of tar's own, which is read into memory before it can be inspected."""
    record = member("b/x", kind=tarfile.XHDTYPE)
    record.size = 4 << 30
    return _bytes(path, gzip.compress(record.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20)))


def _manifest(path: Path, text: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member("b/manifest.json", text.encode()), io.BytesIO(text.encode()))
    return path


GOOD = b"good"
HOSTILE: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "a name that leaves the folder": (
        "lists a file '../evil'",
        lambda p: forged(p, {"../evil": listing(GOOD)}, [(member("b/../evil", GOOD), GOOD)]),
    ),
    "an absolute name": (
        "lists a file '/evil'",
        lambda p: forged(p, {"/evil": listing(GOOD)}, [(member("/evil", GOOD), GOOD)]),
    ),
    "a file outside that is not listed": ("does not list", lambda p: forged(p, {}, [(member("../evil", GOOD), GOOD)])),
    "a file inside that is not listed": ("does not list", lambda p: forged(p, {}, [(member("b/evil", GOOD), GOOD)])),
    "a symbolic link": (
        "not a regular file",
        lambda p: forged(p, {"x": listing(b"")}, [(member("b/x", kind=tarfile.SYMTYPE, link="/etc/passwd"), b"")]),
    ),
    "a hard link": (
        "not a regular file",
        lambda p: forged(p, {"x": listing(b"")}, [(member("b/x", kind=tarfile.LNKTYPE, link="b/manifest.json"), b"")]),
    ),
    "a device": (
        "not a regular file",
        lambda p: forged(p, {"x": listing(b"")}, [(member("b/x", kind=tarfile.CHRTYPE), b"")]),
    ),
    "a folder": (
        "not a regular file",
        lambda p: forged(p, {"x": listing(b"")}, [(member("b/x", kind=tarfile.DIRTYPE), b"")]),
    ),
    "another content": ("hash differs", lambda p: forged(p, {"x": listing(GOOD)}, [(member("b/x", b"evil"), b"evil")])),
    "another size": ("bytes and not", lambda p: forged(p, {"x": listing(GOOD)}, [(member("b/x", b"12345"), b"12345")])),
    "a file twice": (
        "does not list",
        lambda p: forged(p, {"x": listing(GOOD)}, [(member("b/x", GOOD), GOOD), (member("b/x", GOOD), GOOD)]),
    ),
    "a file that is missing": ("incomplete", lambda p: forged(p, {"x": listing(GOOD)}, [])),
    "a file that would fill the disk": (
        "too large for a bundle",
        lambda p: forged(p, {"x": {"bytes": 1 << 40, "sha256": "0" * 64}}, []),
    ),
    "many files that would": (
        "too large for a bundle",
        lambda p: forged(p, {f"x{i}": {"bytes": 1 << 30, "sha256": "0" * 64} for i in range(20)}, []),
    ),
    "no manifest": ("starts with", _plain),
    "no archive": ("is not a bundle", lambda p: _bytes(p, b"hello")),
    "a little that unpacks to much": ("bytes that unpack to 335544320", _bomb),
    "a record without end": ("more than its headers declare", _long_record),
    "infinity": (
        "Infinity is not a JSON number",
        lambda p: _manifest(p, '{"format": 1, "files": {"x": {"bytes": Infinity}}}'),
    ),
    "a manifest without bottom": ("nested too deeply", lambda p: _manifest(p, '{"files": ' + "[" * 100_000)),
    "a manifest with a key twice": ("twice", lambda p: _manifest(p, '{"format": 1, "files": {}, "files": {}}')),
    "a size that is no number": (
        "cannot be read",
        lambda p: forged(p, {"x": {"bytes": "4", "sha256": "0" * 64}}, [(member("b/x", GOOD), GOOD)]),
    ),
    "an archive that was cut off": ("damaged|incomplete|cannot be read", _cut),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_and_damaged_archives_are_refused_in_words(tmp_path: Path, what: str) -> None:
    says, make = HOSTILE[what]
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = make(tmp_path / "b.tar.gz")
    with pytest.raises(BadInput, match=says):
        bundle_archive.unpack(archive, inside)
    assert not (tmp_path / "evil").exists() and not Path("/evil").exists()
    assert not any(p.is_symlink() for p in inside.rglob("*"))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"format": 99, "files": {}}).encode()
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        tar.addfile(member("b/manifest.json", text), io.BytesIO(text))
    with pytest.raises(BadInput, match="format 99"):
        bundle_archive.unpack(tmp_path / "b.tar.gz", tmp_path)


def test_a_file_that_was_changed_after_unpacking_is_noticed(tmp_path: Path) -> None:
    bundle_archive.write(tmp_path / "b.tar.gz", {}, FILES)
    folder = bundle_archive.unpack(tmp_path / "b.tar.gz", tmp_path)
    (folder / "run.py").write_bytes(b"print('evil!')\n")
    with pytest.raises(BadInput, match=r"run\.py has changed"):
        bundle_archive.read_manifest(folder)


def test_a_name_that_is_no_bundles_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.tar\.gz or"):
        bundle_archive.write(tmp_path / "bundle.zip", {}, FILES)
    with pytest.raises(BadInput, match="cannot be read"):
        bundle_archive.unpack(tmp_path / "none.tar.gz", tmp_path)
    (tmp_path / "text.tar.gz").write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(BadInput, match=r"damaged|is empty"):
        bundle_archive.unpack(tmp_path / "text.tar.gz", tmp_path)

"""The archive of a bundle: one folder as .tar.gz or .tar.zst, whose first file lists all others with their hashes.

Everything is checked against that list while it is unpacked: names, file types, sizes and hashes.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from deepgen.vocabulary import BadInput, JsonObject, Missing, foreign

FORMAT = 1
MANIFEST = "manifest.json"
SIGNATURE = "signature"  # in the manifest; it covers everything else in the manifest
SUFFIXES = (".tar.gz", ".tgz", ".tar.zst")
MOST_FILES = 200_000
MOST_MANIFEST_BYTES = foreign.MOST_BYTES
MOST_FILE_BYTES = 1 << 30
MOST_BYTES = 16 << 30
# Kernels and arrays compress 2 to 10 times. A large file that compresses 100 times is meant to fill a disk.
MOST_RATIO = 100
SMALL_BYTES = 256 << 20
_MOST_HEADER_BYTES = 64 << 10  # between two files: tar's own records
_BLOCK = 20 * 512  # bytes that tarfile reads at once
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*")
_CHUNK = 1 << 20


def stem(archive: Path) -> str:
    """The name without its suffix, which must be one of ours."""
    for suffix in SUFFIXES:
        if archive.name.endswith(suffix) and archive.name != suffix:
            return archive.name[: -len(suffix)]
    raise BadInput(f"{archive} does not have a bundle's name", allowed="must end in " + " or ".join(SUFFIXES))


def check(archive: Path) -> None:
    """Raise if the archive cannot be written, before any work is done."""
    stem(archive)
    if archive.name.endswith(".tar.zst"):
        _zstd()
    if not archive.absolute().parent.is_dir():
        raise BadInput(f"{archive} cannot be written", allowed="a file in a folder that exists")


def write(
    archive: Path,
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes | Path],
    sign: Callable[[object], str | None] = lambda manifest: None,
) -> str:
    """Write the archive atomically and return the bundle's id: the hash of its manifest.

    The manifest contains the hashes of all files, so its signature covers them.
    """
    top = re.sub(r"[^A-Za-z0-9._=-]", "_", stem(archive)).lstrip(".=-") or "bundle"
    listed: JsonObject = {name: _listing(content) for name, content in sorted(files.items())}
    whole = {"format": FORMAT, **manifest, "files": listed}
    signature = sign(whole)
    text = json.dumps(whole if signature is None else {**whole, SIGNATURE: signature}).encode()
    fresh = archive.with_name(f".{archive.name}.new")
    try:
        with _opened(archive, fresh, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            _add(tar, f"{top}/{MANIFEST}", io.BytesIO(text), len(text))
            for name, content in sorted(files.items()):
                with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                    _add(tar, f"{top}/{name}", source, listed[name]["bytes"])  # type: ignore[index,call-overload,arg-type]
        fresh.replace(archive)
    except OSError as error:
        hint = "a file in a folder that exists" if isinstance(error, FileNotFoundError) else None
        raise BadInput(f"{archive} cannot be written: {error.strerror}", allowed=hint) from error
    finally:
        fresh.unlink(missing_ok=True)
    return hashlib.sha256(text).hexdigest()


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack into an existing folder, and return the bundle's own folder in it. Raises BadInput; runs no code."""
    where = str(archive)
    stem(archive)
    try:
        packed = archive.stat().st_size
        with _opened(archive, archive, "rb") as stream:
            meter = _Meter(stream, where)
            with tarfile.open(fileobj=meter, mode="r|", bufsize=_BLOCK) as tar:  # type: ignore[call-overload]
                return _unpacked(tar, meter, folder, packed, where)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise BadInput("is not a bundle: its compression does not match its name", where=where) from error
        raise BadInput(f"cannot be read: {error.strerror or error}", where=where) from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BadInput(f"is damaged: {error}", where=where, allowed="copy the bundle again") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # defined by either of the two packages
            raise
        raise BadInput(f"is damaged: {error}", where=where, allowed="copy the bundle again") from error


def read_manifest(folder: Path) -> tuple[dict[str, Any], str]:
    """The manifest of an unpacked bundle, after comparing all files with it, and the bundle's id."""
    where = str(folder)
    try:
        text = foreign.read_bytes(folder / MANIFEST, most=MOST_MANIFEST_BYTES)
        manifest = _parsed(text, where)
        for name, expected in manifest["files"].items():
            if _listing(folder / name) != expected:
                raise BadInput(f"{name} has changed since the bundle was packed", where=where)
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be read: {error.strerror}", where=where) from error
    return manifest, hashlib.sha256(text).hexdigest()


class _Meter:
    """A stream that raises BadInput once more bytes are read than allowed, as headers may claim any size."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        self._left = 0
        self.allow(0)

    def allow(self, size: int) -> None:
        """Allow this many bytes of content, plus tar's records around it."""
        self._left = size + _MOST_HEADER_BYTES + 2 * _BLOCK

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BadInput("contains more than its headers declare", where=self._where)
        return data


def _unpacked(tar: tarfile.TarFile, meter: _Meter, folder: Path, packed: int, where: str) -> Path:
    first = tar.next()
    if first is None:
        raise BadInput("is empty", where=where)
    top, _, name = first.name.partition("/")
    if name != MANIFEST or not _NAME.fullmatch(top) or not first.isreg() or first.size > MOST_MANIFEST_BYTES:
        raise BadInput(f"is not a bundle: it starts with {first.name!r}", where=where, allowed=f"NAME/{MANIFEST}")
    meter.allow(first.size)
    text = _read(tar, first)
    waiting = dict(_parsed(text, where)["files"])
    total = sum(entry["bytes"] for entry in waiting.values())
    if total > max(SMALL_BYTES, MOST_RATIO * packed):
        what = f"has {packed} bytes that unpack to {total}"
        raise BadInput(
            what, where=where, allowed=f"the ratio may be at most {MOST_RATIO}, or the size {SMALL_BYTES >> 20} MiB"
        )
    (folder / top).mkdir()
    (folder / top / MANIFEST).write_bytes(text)
    meter.allow(0)
    while (member := tar.next()) is not None:
        name = member.name[len(top) + 1 :]
        expected = waiting.pop(name, None) if member.name.startswith(f"{top}/") else None
        if expected is None:
            raise BadInput(f"holds {member.name!r}, which its manifest does not list", where=where)
        if not member.isreg():
            raise BadInput(f"holds {member.name!r}, which is not a regular file", where=where)
        if member.size != expected["bytes"]:
            raise BadInput(f"{name} has {member.size} bytes and not {expected['bytes']}", where=where)
        path = folder / top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        meter.allow(member.size)
        if _copied(tar, member, path) != expected["sha256"]:
            raise BadInput(f"{name} does not match its manifest: the hash differs", where=where)
        meter.allow(0)
    if waiting:
        raise BadInput(f"is incomplete: {next(iter(waiting))} is missing", where=where, allowed="copy the bundle again")
    return folder / top


def _parsed(text: bytes, where: str) -> dict[str, Any]:
    """The manifest, after checking that its files stay inside the folder and within the limits."""
    manifest = foreign.parse(text, f"{where}: its manifest", most=MOST_MANIFEST_BYTES)
    with foreign.shaped(where, "its manifest cannot be read"):
        version, files = manifest["format"], manifest["files"]
        sizes = [entry["bytes"] for entry in files.values()]
        good = all(set(entry) == {"bytes", "sha256"} for entry in files.values())
        good = good and all(type(size) is int for size in sizes)
    if version != FORMAT:
        raise BadInput(
            f"has format {version}", where=where, allowed=f"this deepgen reads format {FORMAT}: pack it again"
        )
    strange = [name for name in files if not _inside(name)]
    if strange:
        raise BadInput(f"lists a file {strange[0]!r}", where=where, allowed="only names inside its own folder")
    if not good:
        raise BadInput("its manifest cannot be read", where=where)
    few = len(files) <= MOST_FILES and sum(sizes) <= MOST_BYTES
    if not few or any(not 0 <= size <= MOST_FILE_BYTES for size in sizes):
        raise BadInput("is too large for a bundle", where=where, allowed=f"at most {MOST_BYTES >> 30} GiB")
    return dict(manifest)


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and "/".join(parts) == name and all(_NAME.fullmatch(p) for p in parts) and name != MANIFEST


def _listing(content: bytes | Path) -> JsonObject:
    if isinstance(content, bytes):
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    total, seen = 0, hashlib.sha256()
    with content.open("rb") as file:
        while part := file.read(_CHUNK):
            total += len(part)
            seen.update(part)
    return {"bytes": total, "sha256": seen.hexdigest()}


def _add(tar: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)  # no time and no owner: the same kernels give the same archive
    entry.size, entry.mode = size, 0o644
    tar.addfile(entry, source)


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(member)
    assert source is not None, "a regular file"
    return source.read()


def _copied(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    source = tar.extractfile(member)
    assert source is not None, "a regular file"
    seen = hashlib.sha256()
    with path.open("xb") as file:
        while part := source.read(_CHUNK):
            seen.update(part)
            file.write(part)
    return seen.hexdigest()


@contextmanager
def _opened(named: Path, path: Path, mode: str) -> Iterator[IO[bytes]]:
    """The uncompressed stream of a file, with the compression given by its name."""
    if named.name.endswith(".tar.zst"):
        with _zstd().open(path, mode) as stream:
            yield stream
    elif mode == "wb":
        with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
            yield stream  # type: ignore[misc]
    else:
        with gzip.open(path, "rb") as stream:
            yield stream  # type: ignore[misc]


def _zstd() -> Any:
    for name in ("compression.zstd", "zstandard"):  # part of Python since 3.14; a package before
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Missing(
        "zstd",
        blocks="bundles named .tar.zst can be neither written nor read",
        remedy="Install it with `pip install zstandard`, or name the bundle .tar.gz, which every Python reads.",
    )

"""Finished builds are not repeated; truncated, foreign or oversized entries never break a study."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from build_helpers import Fake, c_kernel

from deepgen.targets import Cpu
from deepgen.toolchains import BuildError, BuildLimits, Cache, Group, cache_key, default_cache_folder, make
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import Artifact, Kernel, Verdict, folders


@pytest.fixture
def counting(fake: Fake, library: Path, tmp_path: Path) -> CCompiler:
    """A compiler that records each of its runs."""
    return fake(f"echo run >> {tmp_path}/runs; cp {library} $out")


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().split())


def built(kernel: Kernel, compiler: CCompiler, target: Cpu, cache: Cache) -> Artifact:
    with Group() as group:
        return make(kernel, compiler, target, cache, BuildLimits(), group)


def test_the_key_tells_apart_all_that_changes_the_binary(gcc: CCompiler, target: Cpu) -> None:
    keys = {
        cache_key(c_kernel(), gcc, target),
        cache_key(c_kernel(salt=1), gcc, target),
        cache_key(c_kernel(), replace(gcc, identity="another patch level"), target),
        cache_key(c_kernel(), gcc, replace(target, isa=("sse2",))),
    }
    assert len(keys) == 4
    # Another machine with the same instruction sets shares the entry.
    other = replace(target, model="other", cores=64, l2_bytes=1 << 21)
    assert cache_key(c_kernel(), gcc, other) in keys


def test_a_kernel_is_built_once(counting: CCompiler, target: Cpu, cache: Cache, tmp_path: Path) -> None:
    first = built(c_kernel(), counting, target, cache)
    assert built(c_kernel(), counting, target, Cache(cache.folder)) == first
    assert runs(tmp_path) == 1
    assert Path(first.binary).is_relative_to(cache.folder)
    assert list((cache.folder / "work").iterdir()) == []


@pytest.mark.parametrize(
    "harm", ["truncated", "altered", "missing", "no entry", "bad entry", "empty entry", "strange entry"]
)
def test_a_damaged_entry_is_built_anew(
    counting: CCompiler, target: Cpu, cache: Cache, tmp_path: Path, harm: str
) -> None:
    artifact = built(c_kernel(), counting, target, cache)
    binary = Path(artifact.binary)
    image = binary.read_bytes()
    entry = binary.with_name("entry.json")
    if harm == "truncated":
        binary.write_bytes(image[:-1])
    elif harm == "altered":
        binary.write_bytes(image[:-1] + bytes([image[-1] ^ 1]))
    elif harm == "missing":
        binary.unlink()
    elif harm == "no entry":
        entry.unlink()
    else:
        entry.write_text({"bad entry": "[1, 2", "empty entry": "{}", "strange entry": '"sha256"'}[harm])
    assert cache.get(cache_key(c_kernel(), counting, target)) is None
    assert built(c_kernel(), counting, target, cache) == replace(
        artifact, seconds=_seconds(binary), facts=_facts(binary)
    )
    assert runs(tmp_path) == 2
    assert binary.read_bytes() == image


def _seconds(binary: Path) -> float:
    return float(json.loads(binary.with_name("entry.json").read_text())["seconds"])


def _facts(binary: Path) -> dict[str, int]:
    facts: dict[str, int] = json.loads(binary.with_name("entry.json").read_text())["facts"]
    return facts


def test_a_source_that_was_refused_is_not_compiled_again(fake: Fake, target: Cpu, cache: Cache, tmp_path: Path) -> None:
    refusing = fake(f"echo run >> {tmp_path}/runs; echo 'add.c:1:1: error: no'; exit 1")
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            built(c_kernel(), refusing, target, cache)
        assert caught.value.verdict is Verdict.BUILD_FAILED
        assert caught.value.detail == "gcc rejected the source: add.c:1:1: error: no"
    assert runs(tmp_path) == 1


def test_time_and_memory_that_ran_out_are_not_held_against_a_kernel(
    fake: Fake, target: Cpu, cache: Cache, tmp_path: Path
) -> None:
    greedy = fake(f"echo run >> {tmp_path}/runs; echo 'cc1: out of memory'; exit 1")
    for _ in range(2):
        with pytest.raises(BuildError):
            built(c_kernel(), greedy, target, cache)
    assert runs(tmp_path) == 6, "three tries each"


@pytest.mark.parametrize(
    "chance",
    [
        "kill -KILL $$",
        "kill -SEGV $$",
        "{ echo 'ptxas fatal   : Memory allocation failure'; exit 1; }",
        "{ echo 'gcc: fatal error: Terminated signal terminated program cc1'; exit 1; }",
        "{ echo 'clang: error: unable to execute command: Hangup'; exit 1; }",
        "{ echo 'collect2: fatal error: ld terminated with signal 9 [Killed]'; exit 1; }",
        "{ echo 'collect2: fatal error: ld terminated with signal 15 [Terminated]'; exit 1; }",
    ],
)
def test_a_compiler_that_fails_by_chance_gets_another_try(
    fake: Fake, target: Cpu, cache: Cache, library: Path, tmp_path: Path, chance: str
) -> None:
    unlucky = fake(f"echo run >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 1 ] && {chance}; cp {library} $out")
    assert Path(built(c_kernel(), unlucky, target, cache).binary).exists()
    assert runs(tmp_path) == 2


def test_two_processes_share_a_cache(gcc: CCompiler, cache: Cache, tmp_path: Path) -> None:
    program = f"""
import ctypes, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from build_helpers import c_kernel
from deepgen.toolchains import *
from deepgen.targets import resolve
target = resolve("cpu")
with BuildPool(toolchains_for(target, {{"gcc": {gcc.path!r}}}), target, Cache({str(cache.folder)!r}), 2) as pool:
    futures = [pool.submit(c_kernel(salt=i)) for i in range(6)]
    print(sum(ctypes.CDLL(f.result().binary).add(i, 1) for i, f in enumerate(futures)), pool.cache.trouble)
"""
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["21 None\n"] * 2
    assert len(list(cache.folder.glob("??/*/kernel.so"))) == 6
    assert list((cache.folder / "work").iterdir()) == []


@pytest.mark.parametrize("where", ["a file", "/proc/deepgen"])
def test_a_cache_that_cannot_be_written_is_done_without(
    counting: CCompiler, target: Cpu, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("")
    cache = Cache(tmp_path / where)
    with caplog.at_level(logging.WARNING):
        artifact = built(c_kernel(), counting, target, cache)
    assert ctypes.CDLL(artifact.binary).add(1, 2) == 3
    assert cache.trouble is not None
    assert str(cache.folder) in cache.trouble
    assert caplog.messages == [cache.trouble]
    assert built(c_kernel(), counting, target, cache) == artifact
    assert runs(tmp_path) == 1
    assert cache.clear() == cache.trim(0) == cache.size() == 0


def test_a_disk_that_fills_up_during_a_build_is_done_without(
    fake: Fake, target: Cpu, cache: Cache, library: Path
) -> None:
    full = fake(
        f"case $PWD in {cache.folder}*) echo 'fatal error: error writing: No space left on device'; exit 1;; esac\n"
        f"cp {library} $out"
    )
    artifact = built(c_kernel(), full, target, cache)
    assert Path(artifact.binary).exists()
    assert cache.trouble is not None
    assert "No space left on device" in cache.trouble


def test_the_longest_unused_go_first(counting: CCompiler, target: Cpu, cache: Cache) -> None:
    artifacts = [built(c_kernel(salt=i), counting, target, cache) for i in range(4)]
    for age, artifact in zip((40, 30, 20, 10), artifacts, strict=True):
        then = time.time() - age
        os.utime(Path(artifact.binary).with_name("entry.json"), (then, then))
    assert built(c_kernel(salt=0), counting, target, cache) == artifacts[0]  # used just now
    each = cache.size() // 4
    assert cache.trim(2 * each + each // 2) > 0
    assert [Path(a.binary).exists() for a in artifacts] == [True, False, False, True]
    assert cache.size() <= 2 * each + each // 2
    assert cache.clear(older_than=5) > 0
    assert [Path(a.binary).exists() for a in artifacts] == [True, False, False, False]
    assert cache.clear() > 0
    assert cache.size() == 0


def test_an_entry_half_removed_is_removed_for_good(counting: CCompiler, target: Cpu, cache: Cache) -> None:
    binary = Path(built(c_kernel(), counting, target, cache).binary)
    binary.with_name("entry.json").unlink()
    assert cache.size() > 0
    assert cache.clear() > 0
    assert not binary.exists()


def test_the_cache_keeps_itself_within_its_size(counting: CCompiler, target: Cpu, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "small", max_bytes=100_000)
    for i in range(12):
        built(c_kernel(salt=i), counting, target, cache)
    assert 0 < cache.size() <= 125_000


def test_what_a_killed_process_left_is_swept(cache: Cache) -> None:
    """At once, whatever the clock says; the folder of a living process is left alone."""
    program = f"""
import sys
from deepgen.toolchains import Cache
with Cache({str(cache.folder)!r}).workspace() as folder:
    (folder / "half").write_text("built")
    print(folder, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, living = (Path(process.stdout.readline().strip()) for process in both if process.stdout)
    both[0].kill()
    both[0].communicate()
    long_ago = time.time() - 2 * 86400
    os.utime(living, (long_ago, long_ago))
    os.utime(living.parent, (long_ago, long_ago))
    Cache(cache.folder)
    assert not killed.exists() and living.exists()
    both[1].communicate("")
    assert list((cache.folder / "work").iterdir()) == []


def test_what_nobody_owns_is_swept_after_a_day(cache: Cache) -> None:
    old, fresh = cache.folder / "work" / "old", cache.folder / "work" / "fresh"
    old.mkdir(parents=True)
    fresh.mkdir()
    then = time.time() - 2 * 86400
    os.utime(old, (then, then))
    Cache(cache.folder)
    assert not old.exists()
    assert fresh.exists()


def test_the_folder_of_a_process_that_was_killed_without_a_cache_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os; from deepgen.toolchains import Cache; Cache('/proc/deepgen').fall_back(OSError()); os._exit(9)"
    )
    place = tmp_path / "temporary"
    place.mkdir()
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(place)}, check=False)
    assert len(list(place.iterdir())) == 1
    monkeypatch.setattr(folders, "_places", lambda: [place])
    folders.sweep()
    assert list(place.iterdir()) == []


def test_the_cache_lies_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "deepgen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / ".cache" / "deepgen"

"""Builds run alongside measurements, pause while decisive timings are taken, and end with the study."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from build_helpers import Fake, alive, c_kernel, state, until

from deepgen.targets import Cpu
from deepgen.toolchains import BuildError, BuildLimits, BuildPool, Cache
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import Verdict


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def pids(tmp_path: Path) -> list[int]:
    file = tmp_path / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def test_many_kernels_and_a_bad_one(gcc: CCompiler, target: Cpu, cache: Cache) -> None:
    with BuildPool(lambda _: gcc, target, cache, jobs=2) as pool:
        good = [pool.submit(c_kernel(salt=i)) for i in range(4)]
        bad = pool.submit(c_kernel("nonsense"))
        assert len({future.result().binary for future in good}) == 4
        with pytest.raises(BuildError) as caught:
            bad.result()
        assert caught.value.verdict is Verdict.BUILD_FAILED
        assert until(lambda: pool.running == 0)


def test_a_kernel_submitted_twice_is_built_once(
    fake: Fake, target: Cpu, cache: Cache, library: Path, tmp_path: Path
) -> None:
    slow = fake(f"echo run >> {tmp_path}/runs; sleep 0.2; cp {library} $out")
    with BuildPool(lambda _: slow, target, cache, jobs=4) as pool:
        first, second = pool.submit(c_kernel()), pool.submit(c_kernel())
        assert first.result() == second.result()
        assert pool.submit(c_kernel()).result() == first.result()
    assert (tmp_path / "runs").read_text() == "run\n"


def test_no_more_builds_run_than_jobs(fake: Fake, target: Cpu, cache: Cache, library: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    # The first build waits for a second one to start beside it; how soon that is depends on the machine.
    noting = fake(
        f"touch {marks}/$$; ls {marks} | wc -l >> {tmp_path}/counts\n"
        f"while ! grep -q 2 {tmp_path}/counts; do sleep 0.01; done\n"
        f"sleep 0.1; rm {marks}/$$; cp {library} $out"
    )
    with BuildPool(lambda _: noting, target, cache, jobs=2) as pool:
        futures = [pool.submit(c_kernel(salt=i)) for i in range(6)]
        for future in futures:
            future.result()
    assert max(int(word) for word in (tmp_path / "counts").read_text().split()) == 2


def test_in_a_quiet_window_no_compiler_uses_the_cpu(fake: Fake, target: Cpu, cache: Cache, tmp_path: Path) -> None:
    # The compiler and its child process, both busy.
    busy = fake(f"(while :; do :; done) & echo $! $$ >> {tmp_path}/pids; while :; do :; done")
    with BuildPool(lambda _: busy, target, cache, jobs=1) as pool:
        pool.submit(c_kernel())
        pool.submit(c_kernel(salt=1))
        assert until(lambda: len(pids(tmp_path)) == 2)
        both = pids(tmp_path)
        with pool.quiet():
            assert (pool.running, pool.paused) == (0, True)
            assert until(lambda: [state(pid) for pid in both] == ["T", "T"])  # a signal takes a moment to arrive
            before = [cpu_ticks(pid) for pid in both]
            time.sleep(0.4)
            assert [cpu_ticks(pid) for pid in both] == before
        assert pool.running == 1
        assert until(lambda: all(cpu_ticks(pid) > ticks for pid, ticks in zip(both, before, strict=True)))


def test_no_build_starts_in_a_quiet_window(
    fake: Fake, target: Cpu, cache: Cache, library: Path, tmp_path: Path
) -> None:
    compiler = fake(f"touch {tmp_path}/started; cp {library} $out")
    with BuildPool(lambda _: compiler, target, cache, jobs=1) as pool:
        with pool.quiet(), pool.quiet():
            future = pool.submit(c_kernel())
            time.sleep(0.2)
            assert not (tmp_path / "started").exists()
        future.result()
        assert (tmp_path / "started").exists()


def test_time_limits_do_not_tick_in_a_quiet_window(
    fake: Fake, target: Cpu, cache: Cache, library: Path, tmp_path: Path
) -> None:
    compiler = fake(f"while [ ! -f {tmp_path}/go ]; do sleep 0.01; done; cp {library} $out")
    with BuildPool(lambda _: compiler, target, cache, jobs=1, limits=BuildLimits(wall_seconds=3.0)) as pool:
        future = pool.submit(c_kernel())
        assert until(lambda: pool.running == 1)
        with pool.quiet():
            (tmp_path / "go").touch()
            time.sleep(3.1)
            assert not future.done()
        assert future.result().format == "so"


def test_closing_kills_what_runs_and_drops_what_waits(fake: Fake, target: Cpu, cache: Cache, tmp_path: Path) -> None:
    hanging = fake(f"sleep 1000 & echo $! $$ >> {tmp_path}/pids; wait")
    pool = BuildPool(lambda _: hanging, target, cache, jobs=2)
    futures = [pool.submit(c_kernel(salt=i)) for i in range(4)]
    assert until(lambda: len(pids(tmp_path)) == 4)
    pool.pause()  # a stopped compiler must be killed as well
    pool.close()
    assert until(lambda: not any(map(alive, pids(tmp_path))))
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    assert list((cache.folder / "work").iterdir()) == []


def test_an_interrupt_ends_the_pool_at_once(fake: Fake, target: Cpu, cache: Cache, tmp_path: Path) -> None:
    hanging = fake(f"echo $$ >> {tmp_path}/pids; exec sleep 1000")

    def study() -> None:
        with BuildPool(lambda _: hanging, target, cache, jobs=1) as pool:
            pool.submit(c_kernel())
            assert until(lambda: len(pids(tmp_path)) == 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study()
    assert not any(map(alive, pids(tmp_path)))


def test_closing_may_wait_for_what_was_submitted(fake: Fake, target: Cpu, cache: Cache, library: Path) -> None:
    slow = fake(f"sleep 0.1; cp {library} $out")
    pool = BuildPool(lambda _: slow, target, cache, jobs=1)
    futures = [pool.submit(c_kernel(salt=i)) for i in range(3)]
    pool.close(cancel=False)
    assert all(Path(future.result(timeout=0).binary).exists() for future in futures)


def test_no_threads_are_left(gcc: CCompiler, target: Cpu, cache: Cache) -> None:
    with BuildPool(lambda _: gcc, target, cache, jobs=3) as pool:
        pool.submit(c_kernel()).result()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("deepgen-build")]

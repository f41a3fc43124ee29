"""A board over SSH: a real server on a loopback address with a separate user, and qemu as the board's processor.

If tests do not run as root, the board's user is the one who runs them, and its disk cannot be filled.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import disturbed_board
import pytest
from riscv_products import LOOPS, OPERATOR, kernel_of

import needs
from deepgen import targets
from deepgen.frontends.cli.main import main
from deepgen.run.measure import Contender, Policy, Task
from deepgen.run.riscv import board, perf
from deepgen.run.riscv.runner import RiscvRunner
from deepgen.toolchains import build_once
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Missing
from loopback_board import DROP, KILL, ROOT, LoopbackBoard, loopback

NAME = "riscv:rv64gcv_zvl128b"
HERE = needs.qemu(NAME)
MATMUL = """
import deepgen as dg

kernel = dg.kernel(
    "matmul.c",
    entry="matmul",
    arguments=[dg.input("a", ("n", "n"), "f32"), dg.input("b", ("n", "n"), "f32"), dg.output("c", ("n", "n"), "f32"),
               dg.scalar("n", "i64")],
    sizes={"n": 6},
    knobs={"STEP": [1, 2]},
    reference=lambda a, b: a @ b,
    flops="2 * n ** 3",
)
"""
MATMUL_C = """
void matmul(const float *a, const float *b, float *c, long n) {
    for (long i = 0; i < n; i++)
        for (long start = 0; start < n; start += STEP)
            for (long j = start; j < start + STEP && j < n; j++) {
                float sum = 0;
                for (long k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
                c[i * n + j] = sum;
            }
}
"""
# Like perf, for a kernel whose calls take 50 cycles each, on a core that multiplexes its counters.
PERF = """#!/bin/sh
while [ "$1" != -e ]; do [ "$1" = -o ] && out=$2; shift; done
case $2 in
    l3_miss) echo "event syntax error: 'l3_miss' \\___ parser error"; exit 129 ;;
    cache-misses) echo '<not supported>;;cache-misses:u;0;100.00;;'; exit 0 ;;
esac
calls=$([ -e request ] && awk '/^time/{print $2}' request)
echo "$((1000 + 50 * calls));;cycles:u;100;100.00;;" >${out:-/dev/null}
echo "$((70 * calls));;branches:u;50;50.00;;" >>${out:-/dev/null}
"""


@pytest.fixture(scope="module")
def there() -> Iterator[LoopbackBoard]:
    try:
        with loopback(HERE) as made:
            yield made
    except Missing as missing:
        pytest.skip(f"no board on this machine: {missing.what} is missing")


@pytest.fixture
def server(there: LoopbackBoard, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackBoard]:
    monkeypatch.setenv("PATH", f"{there.client}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(board, "_PAUSE", 0.0)
    yield there
    there.calm()
    there.accept()
    there.perf(there=False)


def runner_on(server: LoopbackBoard) -> RiscvRunner:
    policy = Policy(min_samples=3, max_samples=3, timeout_seconds=60.0)
    return RiscvRunner(Task(OPERATOR, targets.resolve(f"{NAME},host={server.host}"), policy=policy))


def built(body: str) -> tuple[Kernel, Artifact]:
    kernel = kernel_of(body)
    return kernel, build_once(kernel, HERE)


def test_kernels_are_verified_and_timed_there_and_nothing_stays(server: LoopbackBoard) -> None:
    runner = runner_on(server)
    assert runner.task.target.proxy == ""
    measured = runner.measure(*built(LOOPS))
    assert measured.ok and len(measured.samples) == 3 and min(measured.samples) > 0.0, measured
    assert measured.conditions["host"] == server.host and "proxy" not in measured.conditions
    wrong = runner.measure(*built(LOOPS + "C[M * N] = 1;"))
    assert "wrote past the end of C" in wrong.detail
    runner.close()
    assert server.files() == []


def test_finalists_take_turns(server: LoopbackBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, other = runner_on(server), built(LOOPS + "C[0] += 0;")
    ran: list[Path] = []
    run = runner._place.run
    monkeypatch.setattr(
        runner._place, "run", lambda program, *more, **named: (ran.append(program), run(program, *more, **named))[1]
    )
    contenders = [Contender(name, *one) for name, one in (("one", built(LOOPS)), ("other", other))]
    assert [len(found.samples) for found in runner.compare(contenders, 3, 0)] == [3, 3]
    assert ran == 3 * [Path(contender.artifact.binary) for contender in contenders if contender.artifact]
    runner.close()


def test_a_board_without_perf_says_so_and_one_with_it_counts(server: LoopbackBoard) -> None:
    runner, kernel = runner_on(server), built(LOOPS)
    assert runner.count(*kernel, ["cycles", "record.l2_miss"]).missing == {
        "cycles": "the board has no perf",
        "record.l2_miss": "the board has no perf",
    }
    runner.close()
    server.script("bin/perf", PERF)
    runner = runner_on(server)
    counted = runner.count(*kernel, ["cycles", "l3_miss", "cache-misses", "branches", "minor-faults"])
    assert counted.values == {"cycles": 50.0, "branches": 70.0} and counted.scaled == ("branches",)
    assert {event: why.split(" ")[-1] for event, why in counted.missing.items()} == {
        "l3_miss": "event",
        "cache-misses": "it",
        "minor-faults": "it",
    }
    runner.close()


def test_perf_of_this_machine_counts_and_takes_samples(server: LoopbackBoard) -> None:
    server.perf(there=True)
    runner = runner_on(server)
    counted = runner.count(*built(LOOPS), ["page-faults", "record.cpu-clock", "record.no_such_event"])
    if why := counted.missing.get("record.cpu-clock", ""):
        pytest.skip(f"perf does not work here: {why}")
    assert counted.values["record.cpu-clock"] > 0.0, "nanoseconds"
    assert "no such event" in counted.missing["record.no_such_event"]
    runner.close()


def test_samples_are_summed_by_their_periods_and_none_is_no_zero() -> None:
    [(way, events)] = perf.profiles(["record.l2_miss", "record.l2_access", "record.cycles"])
    few = "   1000 l2_miss:u: \n     10   cycles: \n"
    many = "   3000 l2_miss:u: \n   2000 l2_miss:u: \n     4   cycles: \n"
    counted = perf.per_call(way, few, many, 8, events)
    assert counted.values == {"record.l2_miss": 500.0}
    assert "no sample" in counted.missing["record.l2_access"] and "differ by more" in counted.missing["record.cycles"]


def test_clocks_are_in_nanoseconds() -> None:
    [(way, events)] = perf.profiles(["task-clock"])
    few, many = (f"# started\n\n{said};msec;task-clock:u;1;100.00;0.9;CPUs utilized\n" for said in ("1.50", "5.50"))
    assert perf.per_call(way, few, many, 8, events).values == {"task-clock": 0.5e6}


def test_a_machine_that_is_a_board_needs_no_ssh(server: LoopbackBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{server.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    local = targets.resolve(f"{NAME},host=local")
    runner = RiscvRunner(Task(OPERATOR, local, policy=Policy(min_samples=3, max_samples=3, timeout_seconds=60.0)))
    assert len(runner.measure(*built(LOOPS)).samples) == 3
    runner.close()


def test_a_killed_program_is_started_again(server: LoopbackBoard) -> None:
    server.before(KILL, times=1)
    runner = runner_on(server)
    assert runner.measure(*built(LOOPS)).ok and (server.disk / "left").read_text() == ""
    runner.close()


def test_a_dropped_connection_is_made_again_or_told(server: LoopbackBoard) -> None:
    runner = runner_on(server)
    server.before(DROP, times=1)
    assert runner.measure(*built(LOOPS)).ok and (server.disk / "left").read_text() == ""
    server.before(DROP)
    with pytest.raises(DeepgenError, match=r"the connection was lost .*results so far are kept.*again to resume"):
        runner.measure(*built(LOOPS))
    server.calm()
    assert runner.measure(*built(LOOPS)).ok
    runner.close()
    assert disturbed_board.settled(server) == [] and server.files() == []


def test_a_session_that_was_tidied_up_is_made_again_and_a_closed_one_is_not(server: LoopbackBoard) -> None:
    """A shell may start its run after its connection was lost and the session was closed."""
    runner = runner_on(server)
    assert runner.measure(*built(LOOPS)).ok
    [folder] = server.sessions()
    shutil.rmtree(folder)
    assert runner.measure(*built(LOOPS)).ok and server.sessions() == [folder]
    runner.close()
    told = {"session": folder.name, "run": "run-9", "inputs": "inputs-0", "seconds": 1, "before": "", "after": ":"}
    command = [*board._over_ssh(server.host), board._RUN % told]
    late = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert late.returncode == board._NO_INPUTS and server.sessions() == []


def test_a_full_disk_is_told(server: LoopbackBoard) -> None:
    if not os.path.ismount(server.disk):
        pytest.skip("only root can mount a disk that can be filled")
    runner = runner_on(server)
    server.fill()
    with pytest.raises(DeepgenError, match=r"its disk is full .*free space there"):
        runner.measure(*built(LOOPS))
    server.calm()
    assert runner.measure(*built(LOOPS)).ok
    # Room for the program, but not for its output.
    server.before(f"cat /dev/zero >{server.disk}/ballast 2>/dev/null")
    with pytest.raises(DeepgenError, match="disk is full"):
        runner.measure(*built(LOOPS))
    server.calm()
    assert runner.measure(*built(LOOPS)).ok
    runner.close()
    assert server.files() == []


def test_a_wrong_host_key_is_not_trusted(server: LoopbackBoard) -> None:
    server.accept("user")
    with pytest.raises(DeepgenError, match="host key differs"):
        runner_on(server)
    (server.folder / "known").write_text("")
    with pytest.raises(DeepgenError, match=r"host key is not in ~/\.ssh/known_hosts"):
        runner_on(server)


def test_a_machine_of_another_kind_and_a_strange_name_are_refused(server: LoopbackBoard) -> None:
    server.script("bin/uname", "#!/bin/sh\necho sparc\n")
    with pytest.raises(BadInput, match="a riscv64 board"):
        runner_on(server)
    server.script("bin/uname", "#!/bin/sh\necho riscv64\n")
    strange = targets.resolve(f"{NAME},host=-oProxyCommand=x")
    with pytest.raises(BadInput, match="USER@HOST"):
        RiscvRunner(Task(OPERATOR, strange))


def test_a_board_has_a_user_of_its_own(server: LoopbackBoard) -> None:
    if not ROOT:
        pytest.skip("only root can add a user")
    runner = runner_on(server)
    server.before(
        f"ls >/dev/null 2>&1; [ $(awk '/^Uid/{{print $2}}' /proc/$$/status) -ne 0 ] && echo ok >{server.disk}/not-root"
    )
    assert runner.measure(*built(LOOPS)).ok
    runner.close()
    assert server.files() == ["not-root"]
    (server.disk / "not-root").unlink()


def test_a_runner_is_closed_while_a_program_runs(server: LoopbackBoard) -> None:
    runner, kernel = runner_on(server), built(LOOPS)
    begun = server.disk / "begun"
    server.before(f": >{begun}; while [ -e {begun} ]; do sleep 0.05; done")
    with ThreadPoolExecutor() as pool:
        measuring = pool.submit(runner.measure, *kernel)
        while not begun.exists():
            time.sleep(0.02)
        runner.close()
        with pytest.raises(DeepgenError):
            measuring.result()
    begun.unlink()
    assert disturbed_board.settled(server) == [] and server.files() == []


@pytest.mark.slow
def test_one_command_ends_with_the_winner_the_table_and_the_analysis(
    server: LoopbackBoard, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("matmul.py").write_text(MATMUL)
    Path("matmul.c").write_text(MATMUL_C)
    server.script("bin/perf", PERF)
    on_board = ["tune", "matmul.py", "--target", NAME, "--host", server.host, "--counters", "default"]
    short = ["--trials", "2", "--keep-top", "1", "--out", "studies"]
    server.before(DROP)
    assert main([*on_board, *short]) == 1
    assert "results so far are kept" in " ".join(capsys.readouterr().err.split())
    server.calm()
    assert main([*on_board, *short]) == 0
    said = capsys.readouterr().out
    assert server.host in said and "not times" not in said and "simulated" not in said
    assert "analysis none: 2 correct trials are too few" in " ".join(said.split())
    [table] = Path("studies").glob("*/perf_stats.csv")
    for row in csv.DictReader(table.open()):
        assert row["Valid Output"] == "YES" and float(row["Kernel Time (s)"]) > 0.0
        assert row["u_mode_cycle"] == "50" and row["l2_miss(perf record)"] == "N/A", "cycles; no samples"
    assert disturbed_board.settled(server) == [] and server.files() == []
    assert main(["tune", "gemm", "MNK=8", "--target", "sim", "--host", server.host]) == 2
    assert "such as riscv:k1" in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_killed_tuner_left_is_removed_by_a_later_study(server: LoopbackBoard, tmp_path: Path) -> None:
    killed = next(fault for fault in disturbed_board.FAULTS if fault.kills_tuner)
    told = disturbed_board.one(server, 0, killed, after=4.0, trials=1, folder=tmp_path)
    assert told["problems"] == [] and told["trials"] == 1 and told["left_processes"] == []
    runner_on(server).close()
    assert server.files() == []

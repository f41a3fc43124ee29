"""A bad kernel causes one verdict and at most one restart; the next good kernel is measured as if
nothing had happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_kernels import FAULTS, TARGET, build, kernel

from deepgen.frontends.cli.processes import descendants
from deepgen.operators import gemm
from deepgen.run.measure import conditions
from deepgen.run.measure.base import Contender, Policy, RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.run.measure.worker_slot import DeviceSetAside
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, ScalarArg, Step, TensorArg, Verdict

OPERATOR = gemm(37, 29, 23)  # odd sizes: the end of C is inside a cache line
POLICY = Policy(min_samples=5, max_samples=12, timeout_seconds=1.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[Supervisor]:
    supervisor = Supervisor(Task(OPERATOR, TARGET, policy=POLICY))
    yield supervisor
    supervisor.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Task(OPERATOR, TARGET, policy=POLICY))
    yield supervisor
    supervisor.close()


def built(*args: object, **options: object) -> tuple[Kernel, Artifact]:
    made = kernel(*args, **options)  # type: ignore[arg-type]
    return made, build(made)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_its_verdict_and_harms_nobody_else(name: str, shared: Supervisor) -> None:
    fault, good = FAULTS[name], built()
    assert shared.measure(*good).ok
    starts = shared.starts
    measured = shared.measure(*built(fault.body, fault.before))
    assert measured.verdict is fault.verdict, measured.detail
    assert fault.says in measured.detail
    assert "\n" not in measured.detail
    assert not measured.samples or measured.ok, "wrong is a verdict, never a number"
    after = shared.measure(*good)
    assert after.ok, after.detail
    assert after.samples
    assert shared.starts == starts + fault.kills


def test_what_a_kernel_prints_is_kept_out_of_the_conversation(shared: Supervisor) -> None:
    measured = shared.measure(*built(FAULTS["prints garbage"].body))
    assert measured.ok
    assert int(measured.conditions["printed_bytes"]) > 500  # type: ignore[arg-type]


def test_overruns_are_caught_where_the_tensor_ends_on_a_cache_line() -> None:
    runner = Supervisor(Task(gemm(16, 64, 8), TARGET, policy=POLICY))
    past = runner.measure(*built(FAULTS["writes past the end"].body))
    assert (past.verdict, "wrote past the end of C (at byte 4096 of 4096)" in past.detail) == (Verdict.CRASHED, True)
    before = runner.measure(*built(FAULTS["writes before the start"].body))
    assert (before.verdict, "before the start of C" in before.detail) == (Verdict.CRASHED, True)
    runner.close()


def test_workspaces_are_guarded_and_never_zero_by_chance(shared: Supervisor) -> None:
    right = "multiply(A, B, C, M, N, K);"
    assert shared.measure(*built("W[0] = 0; W[M * K - 1] = 0;" + right, workspace="4 * M * K")).ok
    past = shared.measure(*built(right + "W[M * K] = 0;", workspace="4 * M * K"))
    assert "past the end of workspace packed" in past.detail
    stale = shared.measure(*built(right + "C[0] += W[0];", workspace="4 * M * K"))
    assert stale.verdict is Verdict.WRONG, "it counts on memory that nobody promised to clear"
    huge = shared.measure(*built(right, workspace=1 << 50))
    assert huge.verdict is Verdict.OUT_OF_MEMORY


def test_what_was_prepared_ahead_of_time_stays_from_run_to_run(shared: Supervisor) -> None:
    keep = "void keep(const float *B, float *W, long n) { memcpy(W, B, 4 * n); }"
    made = kernel("multiply(A, W, C, M, N, K);", keep, workspace="4 * K * N")
    packed = made.plan.steps[0].args[-1]
    ahead = Step("keep", (TensorArg("B"), packed, ScalarArg("i64", "K * N")))
    made = replace(made, plan=replace(made.plan, prepare=(ahead,)))
    measured = shared.measure(made, build(made))
    assert measured.ok, measured.detail


def test_a_binary_that_cannot_be_loaded_is_refused(shared: Supervisor, tmp_path: Path) -> None:
    made, artifact = built()
    (tmp_path / "broken.so").write_bytes(b"no library")
    broken = shared.measure(made, replace(artifact, kernel_id="broken", binary=str(tmp_path / "broken.so")))
    assert (broken.verdict, "cannot be loaded" in broken.detail) == (Verdict.REFUSED, True)
    [step] = made.plan.steps
    lacking = replace(made, plan=replace(made.plan, steps=(replace(step, entry="absent"),)))
    refused = shared.measure(lacking, artifact)
    assert (refused.verdict, "has no entry 'absent'" in refused.detail) == (Verdict.REFUSED, True)


def test_one_that_fails_in_a_comparison_leaves_the_others_racing(supervisor: Supervisor) -> None:
    names = {"good": None, "late": "right first, wrong later", "bad": "segfault", "well": None, "gone": "exit"}
    names |= {"rude": "changes its process", "worse": "wrong, and changes its process"}
    entries = [Contender(name, *built(*((FAULTS[f].body, FAULTS[f].before) if f else ()))) for name, f in names.items()]
    results = dict(zip(names, supervisor.compare([*entries, Contender("numpy")], rounds=4, seed=1), strict=False))
    assert {name: m.verdict for name, m in results.items()} == {
        "good": Verdict.CORRECT,
        "late": Verdict.WRONG,
        "bad": Verdict.CRASHED,
        "well": Verdict.CORRECT,
        "gone": Verdict.CRASHED,
        "rude": Verdict.WRONG,
        "worse": Verdict.WRONG,
    }
    assert len(results["good"].samples) == len(results["well"].samples) == 4


def test_the_same_kernel_is_set_aside_after_three_deaths(supervisor: Supervisor) -> None:
    bad, good = built(FAULTS["segfault"].body), built()
    for _ in range(3):
        assert supervisor.measure(*good).ok
        assert supervisor.measure(*bad).verdict is Verdict.CRASHED
    starts = supervisor.starts
    aside = supervisor.measure(*bad)
    assert (aside.verdict, "excluded after" in aside.detail) == (Verdict.CRASHED, True)
    assert supervisor.verify(*bad, seed=1, probe="normal").verdict is Verdict.CRASHED
    assert supervisor.starts == starts, "it was not run again"


def test_a_device_that_only_ever_fails_is_set_aside(supervisor: Supervisor) -> None:
    bad = [built(FAULTS[name].body) for name in ("segfault", "exit", "abort")]
    assert [supervisor.measure(*b).verdict for b in bad[:2]] == [Verdict.CRASHED] * 2
    with pytest.raises(DeviceSetAside, match="3 different kernels in a row"):
        supervisor.measure(*bad[2])


def test_three_bad_kernels_in_a_row_are_not_laid_at_the_device_that_still_works(supervisor: Supervisor) -> None:
    good = built()
    assert supervisor.measure(*good).ok
    for name in ("segfault", "exit", "abort", "quick exit"):
        assert supervisor.measure(*built(FAULTS[name].body)).verdict is Verdict.CRASHED
    assert supervisor.measure(*good).ok


def test_a_worker_that_was_killed_between_kernels_is_replaced(supervisor: Supervisor) -> None:
    good = built()
    assert supervisor.measure(*good).ok
    assert supervisor.worker_pid is not None
    os.kill(supervisor.worker_pid, signal.SIGKILL)
    assert supervisor.measure(*good).ok


@pytest.mark.parametrize("delay", [0.0, 0.1, 1.5])
def test_closing_from_another_thread_ends_a_measurement(delay: float) -> None:
    runner = Supervisor(Task(OPERATOR, TARGET, policy=Policy(timeout_seconds=60.0)))
    endless = built(FAULTS["infinite loop"].body)
    closing = threading.Timer(delay, runner.close)
    closing.start()
    started = time.monotonic()
    with pytest.raises(DeepgenError, match="closed"):
        runner.measure(*endless)
    closing.join()
    assert time.monotonic() - started < 30.0, "long before the kernel's own limit"
    assert runner.worker_pid is None


def test_a_result_too_good_to_be_true_is_confirmed_in_a_fresh_worker(supervisor: Supervisor) -> None:
    good = built()
    assert "confirmed" not in supervisor.measure(*good).conditions
    starts = supervisor.starts
    assert supervisor.measure(*good, beat=1000.0).conditions["confirmed"] is True
    assert supervisor.starts > starts


def test_a_time_below_what_the_machine_can_do_is_not_believed() -> None:
    runner = Supervisor(Task(OPERATOR, TARGET, policy=POLICY), RunnerOptions(least_seconds=100.0))
    measured = runner.measure(*built())
    assert (measured.verdict, "machine's peak allows" in measured.detail) == (Verdict.UNSTABLE, True)
    runner.close()


def test_a_disturbed_measurement_is_taken_again(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    good, disturbances = built(), ["noise", "noise", None]
    monkeypatch.setattr(conditions, "contaminated", lambda *_: disturbances.pop(0))
    measured = supervisor.measure(*good)
    assert measured.ok
    assert (measured.conditions["retaken"], "contaminated" in measured.conditions) == (2, False)
    assert not disturbances


def test_what_takes_a_good_part_of_the_time_that_is_left_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "contaminated", lambda *_: "noise")
    spare = [1e-3]
    runner = Supervisor(Task(OPERATOR, TARGET, policy=POLICY), RunnerOptions(spare=lambda: spare[0]))
    good = built()
    hurried = runner.measure(*good)
    assert hurried.ok and "retaken" not in hurried.conditions and hurried.conditions["contaminated"] == "noise"
    (raced,) = runner.compare([Contender("one", *good)], 3, seed=0)
    assert raced.ok and "retaken" not in raced.conditions
    spare[0] = 1e6
    assert runner.measure(*good).conditions["retaken"] == 2
    runner.close()


def test_on_a_machine_that_is_never_quiet_no_time_is_lost_with_retaking(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = built()
    monkeypatch.setattr(conditions, "contaminated", lambda *_: "noise")
    retaken = [supervisor.measure(*good).conditions.get("retaken", 0) for _ in range(5)]
    assert retaken == [2, 2, 2, 0, 0]
    monkeypatch.setattr(conditions, "contaminated", lambda *_: None)
    assert supervisor.measure(*good).ok
    monkeypatch.setattr(conditions, "contaminated", lambda *_: "noise")
    assert supervisor.measure(*good).conditions["contaminated"] == "noise"


_PARENT = """
import sys
sys.path[:0] = {path!r}
from faulty_kernels import FAULTS, TARGET, build, kernel
from pathlib import Path
from deepgen.run.measure import conditions
from deepgen.run.measure.base import Policy, RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.operators import gemm
runner = Supervisor(Task(gemm(37, 29, 23), TARGET, policy=Policy(timeout_seconds=300.0)))
good, endless = kernel(), kernel("if (fork() == 0) {{ setsid(); for (;;) sleep(1); }} for (;;) sleep(1);")
assert runner.measure(good, build(good)).ok
print(runner.worker_pid, flush=True)
runner.measure(endless, build(endless))
"""


def test_no_worker_outlives_its_supervisor() -> None:
    """Not even one that is stuck in a kernel and has started others, if the supervisor is killed without a chance to
    clean up.
    """
    script = _PARENT.format(path=[str(Path(__file__).parent)])
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    until = time.monotonic() + 60.0
    while not descendants(worker) and time.monotonic() < until:
        time.sleep(0.05)
    family = {**descendants(parent.pid), **descendants(worker)}
    assert len(family) == 3 and worker in family, "keeper, worker and what the kernel started"
    parent.kill()
    parent.wait()
    while any(member.running for member in family.values()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [member for member in family.values() if member.running]


def test_without_a_compiler_kernels_are_still_measured_and_faults_still_named(tmp_path: Path) -> None:
    """The worker's helper in C is optional: cold caches then come from streaming memory."""
    made = [built(*fault) for fault in ((), (FAULTS["segfault"].body,), (FAULTS["writes past the end"].body,))]
    runner = Supervisor(
        Task(OPERATOR, TARGET, policy=POLICY), RunnerOptions(cache=tmp_path, toolchains={"gcc": "/absent"})
    )
    good, crash, past = (runner.measure(*m) for m in made)
    assert good.ok
    assert good.conditions["flush"] == "stream"
    assert (crash.verdict, "segmentation fault" in crash.detail) == (Verdict.CRASHED, True)
    assert (past.verdict, "past the end of C" in past.detail) == (Verdict.WRONG, True)
    runner.close()

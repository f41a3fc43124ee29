"""Studies on a Ray cluster of several nodes, with processes and nodes that die: nothing is lost or done twice."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from deepgen import generators, targets
from deepgen.frontends.cli.processes import descendants
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure.base import Policy, Task
from deepgen.tuning import Request, tune
from deepgen.tuning.engines import Engine, LocalEngine, Outcome, Session
from deepgen.vocabulary import DeepgenError, Kernel, Trial, Verdict, folders
from deepgen_cluster.ray import RayEngine, connection, devices, lease
from deepgen_cluster.ray.session import RaySession

if find_spec("ray") is None:  # not imported here: token authentication is decided at import
    pytest.skip("nothing can run on Ray without it: pip install -e '.[cluster]'", allow_module_level=True)
OPERATOR = gemm(128, 128, 128)
SECONDS = 300.0
NEVER = 10**9  # renewals: a process that is merely slow, as on a busy machine, must not be killed


class Nodes:
    """A head without a role, and nodes that come and go."""

    def __init__(self, token: Path) -> None:
        from ray.cluster_utils import Cluster

        self.token = token
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 128 << 20}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)

    def add(self, build: int, measure: int, *groups: str) -> Any:
        resources = devices.of_node(build, measure, groups)
        return self.cluster.add_node(num_cpus=0, resources=resources, object_store_memory=128 << 20)

    def engine(self, cache: Path, **options: Any) -> RayEngine:
        return RayEngine(address=self.cluster.address, token=self.token, cache=cache, **options)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        connection.apply_environment(connection.imported())
        started = Nodes(token)
        started.add(2, 1, "first")
        with started.engine(token.parent).connected():
            yield started
        started.cluster.shutdown()


def kernels(count: int) -> list[Kernel]:
    target, family = targets.resolve("sim"), SimTiles()
    space = family.space(OPERATOR, target)
    return [family.emit(OPERATOR, target, space.at(100 * i)) for i in range(count)]


def opened(engine: Engine, options: str) -> Session:
    return engine.open(Task(OPERATOR, targets.resolve(f"sim:{options}")))


def collect(session: Session, count: int, also: Callable[[int], None] = lambda ended: None) -> dict[int, Outcome]:
    """All outcomes; `also` is called after each poll with the number so far."""
    outcomes: dict[int, Outcome] = {}
    until = time.monotonic() + SECONDS
    while len(outcomes) < count and time.monotonic() < until:
        for outcome in session.results(timeout=0.05):
            assert outcome.trial_id not in outcomes, "reported twice"
            outcomes[outcome.trial_id] = outcome
        also(len(outcomes))
    assert sorted(outcomes) == list(range(count))
    return outcomes


def processes(title: str) -> list[int]:
    """Processes of this test's cluster, whose nodes are its children, with a command line that starts with this."""
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
                found.append(pid)
    return found


def kill(title: str) -> bool:
    for pid in processes(title)[:1]:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def told(trial: Trial) -> tuple[Any, ...]:
    measured = trial.measurement
    return trial.id, dict(trial.config), measured.verdict, measured.samples


@pytest.mark.slow
def test_a_study_has_the_same_trials_as_on_one_machine(nodes: Nodes, tmp_path: Path) -> None:
    def run(engine: Engine, folder: str, trials: int) -> list[tuple[Any, ...]]:
        target = targets.resolve("sim:faults=0.3")
        request = Request(OPERATOR, target, trials=trials, strategy="random", keep_top=2, out=tmp_path / folder)
        return [told(trial) for trial in tune(request, engine=engine).trials()]

    on_ray = nodes.engine(tmp_path / "cache", group="first")
    run(on_ray, "ray", 12)  # once more with more trials: it resumes
    here = run(LocalEngine(jobs=2, cache=tmp_path / "cache"), "local", 20)
    assert run(on_ray, "ray", 20) == here


def test_a_measurement_says_where_it_was_taken(nodes: Nodes, tmp_path: Path) -> None:
    with opened(nodes.engine(tmp_path), "noise=0.01") as session:
        session.submit(0, kernels(1)[0])
        conditions = collect(session, 1)[0].measurement.conditions
    assert conditions["host"] and conditions["slot"] == 0


def test_a_build_whose_process_dies_is_tried_again(nodes: Nodes, tmp_path: Path) -> None:
    killed = [0]

    def murder(ended: int) -> None:
        if killed[0] < 2 and kill("ray::build"):
            killed[0] += 1

    with opened(nodes.engine(tmp_path), "build_seconds=0.5") as session:
        for number, kernel in enumerate(kernels(6)):
            session.submit(number, kernel)
        outcomes = collect(session, 6, murder)
    assert killed[0] == 2
    assert all(outcome.measurement.ok for outcome in outcomes.values())


@pytest.mark.slow
def test_a_build_that_always_kills_its_process_is_a_verdict(nodes: Nodes, tmp_path: Path) -> None:
    with opened(nodes.engine(tmp_path), "build_seconds=5") as session:
        session.submit(0, kernels(1)[0])
        measured = collect(session, 1, lambda ended: void(kill("ray::build")))[0].measurement
    assert measured.verdict is Verdict.BUILD_FAILED
    assert "died 3 times" in measured.detail


def void(_: object) -> None:
    pass


def test_a_device_whose_process_dies_comes_back_and_its_trial_is_run_again(nodes: Nodes, tmp_path: Path) -> None:
    killed = [0]

    def murder(ended: int) -> None:
        if killed[0] == 0 and ended >= 2 and kill("ray::Tester"):
            killed[0] += 1

    with opened(nodes.engine(tmp_path), "measure_seconds=0.1") as session:
        for number, kernel in enumerate(kernels(10)):
            session.submit(number, kernel)
        outcomes = collect(session, 10, murder)
        assert session.verify(kernels(1)[0], 3, "normal").ok, "and finals find it again too"
    assert killed[0] == 1
    assert all(outcome.measurement.ok for outcome in outcomes.values())


def test_a_device_whose_process_is_suspended_is_started_again(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, opened(nodes.engine(tmp_path), "measure_seconds=0.1") as session:
        renewals = connection._held.renewals
        assert renewals is not None
        patch.setattr(renewals, "_seconds", 0.5)
        patch.setattr(lease, "HANGS_ROUNDS", NEVER)
        assert isinstance(session, RaySession)
        [member] = session._pool.ready
        device = json.loads(session._ray.get(member.handle.describe.remote()))["pid"]
        # An earlier test may have killed the process that was known before this one.
        assert until(lambda: renewals._renewed.get(member.handle, (0, ""))[0] == device)
        os.kill(device, signal.SIGSTOP)
        try:
            session.submit(0, kernels(1)[0])
            patch.setattr(lease, "HANGS_ROUNDS", 2)
            assert until(lambda: not Path(f"/proc/{device}").exists())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(device, signal.SIGKILL)  # otherwise the next test would wait for it
        patch.setattr(lease, "HANGS_ROUNDS", NEVER)
        assert collect(session, 1)[0].measurement.ok


@pytest.mark.slow
def test_a_kernel_on_the_processor_survives_the_death_of_the_process_it_runs_in(nodes: Nodes, tmp_path: Path) -> None:
    target = targets.resolve("cpu")
    family = generators.find(OPERATOR, target)
    kernel = family.emit(OPERATOR, target, family.default(OPERATOR, target))
    task = Task(OPERATOR, target, policy=Policy(max_seconds=0.3))
    killed: list[int] = []

    def children() -> list[int]:
        return [pid for tester in processes("ray::Tester") for pid in offspring(tester)]

    def murder(ended: int) -> None:
        if not killed and (found := children()):
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])

    with nodes.engine(tmp_path).open(task) as session:
        session.submit(0, kernel)
        outcome = collect(session, 1, murder)[0]
    assert killed
    assert outcome.measurement.ok, outcome.measurement.detail
    assert outcome.artifact is not None and outcome.artifact.facts
    assert until(lambda: not Path(f"/proc/{killed[0]}").exists())


def offspring(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*"):
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def test_nodes_come_go_and_come_back(nodes: Nodes, tmp_path: Path) -> None:
    with opened(nodes.engine(tmp_path), "build_seconds=0.1,measure_seconds=0.1") as session:
        few = session.slots
        for number, kernel in enumerate(kernels(60)):
            session.submit(number, kernel)
        second = nodes.add(2, 1)
        assert until(lambda: session.slots > few), "a node that joins is used"
        stage = ["joined"]

        def change(ended: int) -> None:
            nonlocal second
            if stage[-1] == "joined" and ended >= 15:
                nodes.cluster.remove_node(second, allow_graceful=False)
                stage.append("gone")
            elif stage[-1] == "gone" and ended >= 25:
                second = nodes.add(2, 1)
                stage.append("back")

        outcomes = collect(session, 60, change)
        assert stage[-1] == "back" and until(lambda: session.slots > few), "and used again when it is back"
        nodes.cluster.remove_node(second)
        assert until(lambda: session.slots == few), "and no longer counted when it is gone"
    assert all(outcome.measurement.ok for outcome in outcomes.values())


def test_two_studies_share_a_device_fairly(nodes: Nodes, tmp_path: Path) -> None:
    engine = nodes.engine(tmp_path)
    counts, enough = [0, 0], 16
    over = threading.Event()

    def study(which: int) -> None:
        # Long enough that they wait for the device, and not for builds, which are slow on a busy machine.
        with opened(engine, f"measure_seconds=0.25,seed={which}") as session:
            both.wait()  # opening takes an arbitrary time, and neither may run dry meanwhile
            for number, kernel in enumerate(kernels(200)):
                session.submit(number, kernel)
            while not session.results(timeout=0.05):
                assert not over.is_set()
            both.wait()
            session.results(timeout=0.0)  # what the first one got while it was alone does not count
            while not over.is_set():
                counts[which] += len(session.results(timeout=0.05))
                if counts[which] >= enough:
                    over.set()

    both = threading.Barrier(2, timeout=SECONDS)
    threads = [threading.Thread(target=study, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert min(counts) >= 0.5 * max(counts) and max(counts) >= enough


def test_a_group_without_nodes_and_a_device_that_no_node_has_are_told(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(DeepgenError, match=r"'build:second'.*build:first 2"):
        opened(nodes.engine(tmp_path, group="second"), "")
    with pytest.raises(DeepgenError, match="can measure kernels for hip:gfx906"):
        nodes.engine(tmp_path).open(Task(OPERATOR, targets.resolve("hip:gfx906")))


def marked(mark: str) -> list[str]:
    """The command lines of processes with that mark in their environment, except Ray's agents.

    Those run no code of ours, and if Ray is killed outright they take a while to notice.
    """
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if "agent" not in line.lower()]


def shown_command() -> list[str]:
    """The command shown in the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "ray-engine.md").read_text()
    return shlex.split(next(line for line in page.splitlines() if line.startswith("deepgen tune")))[1:]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a short path, which Ray needs, containing leftovers of a killed run."""
    with tempfile.TemporaryDirectory(prefix="dg-", dir="/tmp") as folder:
        monkeypatch.setattr(folders, "_places", lambda: [Path(folder)])
        left = Path(folder, "deepgen-ray-left")
        left.mkdir()
        (left / "owner").touch()
        yield Path(folder)


OURS = ("gemm ", "preparing", "searching", "finals", "done", "time: ", "      ", "stopping", "deepgen: stopped")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code"), [(0, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["to the end", "Ctrl-C", "killed"]
)
def test_the_command_leaves_nothing_behind(tmp_path: Path, place: Path, signum: int, code: int) -> None:
    """A killed command leaves its folders, and the next one to start removes them."""
    mark = f"deepgen-{secrets.token_hex(8)}"
    slow = ["--target", "sim:measure_seconds=0.3"] if signum else []
    words = [*shown_command(), *slow]
    program = "from deepgen.frontends.cli.main import run; run()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env={**environment, "MARK": mark, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if signum:
        assert until(lambda: any(place.glob("deepgen-tester-*/owner"))), "measuring has begun"
        command.send_signal(signum)
    _, err = command.communicate(timeout=SECONDS)
    assert command.returncode == code, err
    assert until(lambda: not marked(mark)), marked(mark)
    left = {folder.name.rpartition("-")[0] for folder in place.glob("deepgen-*")}
    if signum == signal.SIGKILL:  # Ray may end an orphaned tester in the usual way, before it dies itself
        assert left - {"deepgen-tester"} == {"deepgen-ray", "deepgen-ray-session"}
    else:
        assert not left
    assert not (place / "deepgen-ray-left").exists()

    def swept() -> bool:
        folders.sweep()
        return not list(place.glob("deepgen-*"))

    assert until(swept), "a killed process that shows no environment any more may hold its locks a while longer"
    assert all(line.startswith(OURS) for line in err.splitlines()), "what Ray prints is not for the user"

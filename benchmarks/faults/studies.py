"""Studies that are tuned while they are disturbed: `deepgen tune` is restarted until it is done."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from deepgen.vocabulary import DeepgenError
from deepgen_cluster.ray.lease import SILENT_SECONDS
from faults import family, processes
from faults.nodes import Nodes
from faults.place import Place
from faults.schedule import Schedule
from faults.watch import Watch, strangers

GLANCE = 0.02
STUCK = 240.0  # seconds without a fault or an ended trial: the command hangs
LINGER = 15.0  # seconds for processes started by a killed command to notice and end
LINGER_ON_RAY = SILENT_SECONDS + LINGER  # a measuring process may wait that long for its driver
COMMON = ["--target", "cpu", "--no-transfer", "--no-second-look", "--keep-top", "2", "--jobs", "2",
          "--baseline", "numpy", "--json"]  # fmt: skip
# In the temporary folder: Ray's own files, and two empty lock files by which processes on a host exclude each other.
STAY = ("ray", "deepgen-turns-")
OF_A_STUDY = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "lock", "winner")


@dataclass(frozen=True)
class Spec:
    """What is tuned. The configs depend only on the words and the seed, whatever the measurements are."""

    name: str
    words: tuple[str, ...]
    trials: int

    def command(self, out: Path) -> list[str]:
        trials = ("--trials", str(self.trials), "--out", str(out))
        return [sys.executable, "-m", "deepgen", "tune", *self.words, *COMMON, *trials]


SPECS = (
    Spec("half-bad", ("gemm", "MNK=128", "--family", family.NAME, "--strategy", "random"), 40),
    Spec("c_gemm", ("gemm", "MNK=64", "--family", "c_gemm", "--strategy", "random"), 24),
    Spec("softmax", ("softmax", "rows=64", "cols=96", "--strategy", "exhaustive"), 24),
)


@dataclass
class Report:
    """Observations of a chaos run so far."""

    studies: int = 0
    runs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # error messages of commands that failed
    violations: list[str] = field(default_factory=list)


def calm(place: Place, spec: Spec) -> Watch:
    """The trials of the same study without any fault, on this machine only, for comparison."""
    out = place.root / "calm" / spec.name
    watch = Watch(out)
    process = subprocess.Popen(
        spec.command(out),
        cwd=place.work, env=place.calm_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and len(watch.ended) < spec.trials:
        time.sleep(5 * GLANCE)
        watch.look()
    process.terminate()  # its finals are not needed
    message = process.communicate()[1]
    watch.look()
    done = process.returncode == 0 or len(watch.ended) == spec.trials  # a small space has fewer
    if not done or watch.wrong:
        raise DeepgenError(f"{spec.name} fails without any fault: {message} {watch.wrong}")
    return watch


@dataclass
class Bench:
    """Disturbs studies, one at a time."""

    place: Place
    schedule: Schedule
    chance: Random
    evidence: Path
    until: float  # monotonic time at which even an incomplete study is given up
    nodes: Nodes | None = None
    report: Report = field(default_factory=Report)
    tuner: int = 0
    ended: int = 0

    def disturb(self, spec: Spec, undisturbed: Watch) -> None:
        """One study from start to end."""
        self.report.studies += 1
        number = self.report.studies
        watch = Watch(self.place.disk("studies") / f"study-{number}")
        self.schedule.new_study()
        wrong: list[str] = []
        history: list[str] = []
        while not (done := self._run(spec, watch, wrong, history) == 0):
            if len(wrong) > 20 or time.monotonic() > self.until:
                break
        self.schedule.relent()
        watch.look()
        if done:
            watch.compare_with(undisturbed)
            wrong += self._finished(watch)
        wrong += watch.wrong
        if wrong:
            self._keep(number, spec, watch, wrong, history)
        shutil.rmtree(watch.out, ignore_errors=True)
        self._command(["clean", "--cache", "--yes"])

    def _run(self, spec: Spec, watch: Watch, wrong: list[str], history: list[str]) -> int:
        """Run the command once, to its end."""
        self.report.runs += 1
        log = self.place.root / "logs" / f"{self.report.runs}"
        words = spec.command(watch.out)
        environment = self.place.environment()
        if self.nodes is not None:
            words += ["--engine", "ray", "--address", self.nodes.address]
            environment |= self.nodes.environment
        explained = {0, *self._lasting_codes()}
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                words, cwd=self.place.work, env=environment, stdout=out, stderr=err, start_new_session=True
            )
            self.tuner = process.pid
            moved = time.monotonic()
            next_look = 0.0
            history.append(f"run {self.report.runs}")
            while process.poll() is None:
                if time.monotonic() >= next_look:
                    watch.look()
                    next_look = time.monotonic() + 5 * GLANCE
                if len(watch.ended) != self.ended:
                    self.ended, moved = len(watch.ended), time.monotonic()
                before = time.monotonic()
                struck = self.schedule.step(self)
                moved += time.monotonic() - before  # restarting a node takes a while
                if struck is not None:
                    moved = time.monotonic()
                    history.append(f"{moved:.2f}: {struck.what}, {self.ended} trials ended")
                    explained |= set(struck.codes)
                if time.monotonic() - moved > STUCK or time.monotonic() > self.until:
                    wrong.append(f"run {self.report.runs} is given up with {self.ended} trials ended: {self._seen()}")
                    process.kill()
                    process.wait()
                time.sleep(GLANCE)
        watch.look()
        self._check_end(process.returncode, explained, log, wrong, history)
        self._check_left(wrong)
        return process.returncode

    def _lasting_codes(self) -> tuple[int, ...]:
        return self.schedule.lasting.codes if self.schedule.lasting is not None else ()

    def _check_end(self, code: int, explained: set[int], log: Path, wrong: list[str], history: list[str]) -> None:
        message = log.with_suffix(".err").read_text(errors="replace")
        last = (message.strip().splitlines() or [""])[-1]
        history.append(f"{time.monotonic():.2f}: ended with {code}: {last}")
        self.report.codes[str(code)] += 1
        if code == 1:
            self.report.errors[last.replace(str(self.place.root), "PLACE")[:160]] += 1
        if code not in explained:
            wrong.append(f"run {self.report.runs} ended with {code}, which no fault explains: {last}")
        for word in ("Traceback", '  File "', "bug of deepgen"):
            if word in message or word in log.with_suffix(".out").read_text(errors="replace"):
                wrong.append(f"run {self.report.runs} showed the user: {message[-2000:]}")

    def _check_left(self, wrong: list[str]) -> None:
        """Processes that a command started must end with it, however it ended. A cluster's processes stay."""
        if self.nodes is not None:
            return
        if left := self._lingering(LINGER):
            wrong.append(f"run {self.report.runs} left processes behind: {[*map(processes.command_of, left)]}")
            processes.send(left, processes.KILL)

    def _lingering(self, seconds: float) -> list[int]:
        """Processes that have not ended by then."""
        until = time.monotonic() + seconds
        while (left := self._others()) and time.monotonic() < until:
            self.schedule.pass_on()  # suspended processes continue in time
            time.sleep(GLANCE)
        return left

    def _others(self) -> list[int]:
        mine = {1, *processes.ancestors_and_self()}
        return [pid for pid in processes.everyone() if pid not in mine]

    def _finished(self, watch: Watch) -> list[str]:
        """The winner must load and be correct, and the study must contain nothing that does not belong there."""
        folder = watch.folder
        if folder is None:
            return ["there is no study"]
        checker = Path(__file__).with_name("check_winner.py")
        environment = self.place.calm_environment()
        done = subprocess.run(
            [sys.executable, str(checker), str(folder)],
            cwd=self.place.work, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wrong = [f"the winner is wrong or cannot be loaded: {done.stderr[-1000:]}"] if done.returncode else []
        if left := strangers(folder, OF_A_STUDY):
            wrong.append(f"left in the study: {left}")
        return wrong

    def _command(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Another deepgen command, undisturbed except for the clock; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "deepgen", *words],
            cwd=self.place.work, env=self.place.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            self.report.violations.append(f"deepgen {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done

    def left_behind(self) -> dict[str, list[str]]:
        """What `deepgen clean` removed of killed runs, and what was left after it."""
        left = self._lingering(LINGER_ON_RAY if self.nodes is not None else LINGER)
        cleaned = self._command(["clean", "--yes"]).stdout
        temp, cache = self.place.disk("temp"), self.place.disk("cache") / "deepgen"
        rest = {
            "temp": sorted(path.name for path in temp.iterdir() if not path.name.startswith(STAY)),
            "cache/work": sorted(path.name for path in (cache / "work").glob("*")),
            "shared memory": sorted(path.name for path in Path("/dev/shm").iterdir()),
            "processes": [processes.command_of(pid) for pid in left],
        }
        removed = [line.split()[-1] for line in cleaned.splitlines() if "leftover" in line]
        return {"removed by clean": removed, **rest}

    def _seen(self) -> list[str]:
        return [processes.command_of(pid)[:120] for pid in self._others()]

    def _keep(self, number: int, spec: Spec, watch: Watch, wrong: list[str], history: list[str]) -> None:
        """Keep the evidence: the study's folder, the output of commands, and the faults in order."""
        self.report.violations += [f"study {number} ({spec.name}): {one}" for one in wrong]
        place = self.evidence / f"study-{number}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "history.txt").write_text("\n".join([*history, *wrong]) + "\n")
        if watch.out.exists():
            shutil.copytree(watch.out, place / "study", dirs_exist_ok=True)
        shutil.copytree(self.place.root / "logs", place / "logs", dirs_exist_ok=True)

"""Tunes each fault as a user would, and reports which outcomes were as expected."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen.run.measure.base import Policy
from deepgen.vocabulary import DeepgenError
from pool.fault import Call, Due, Fault
from pool.texts import described

_ALL_WRONG = ("none of ", "every finalist failed")  # the start of the sentence if no kernel was correct
POLICY = Policy(max_samples=10, max_seconds=0.02, calm_seconds=0.0, race_seconds=0.5, calls_seconds=0.4)
RIGHT, WRONG, LOST, WON, REFUSED = "right", "wrong", "lost", "won", "refused"
SERVED_RIGHT, SERVED_WRONG, DIED = "right", "wrong", "died"


@dataclass(frozen=True)
class Outcome:
    """The outcome for a fault."""

    fate: str  # wrong, lost, won or refused
    detail: str = ""
    served: str = ""  # the result of a user's calls of the winner: right, refused, wrong or died
    marks: tuple[str, ...] = ()  # the winner's unusual properties
    rival: str = ""  # the verdict on the correct kernel, if it is a bad one

    def due(self, fault: Fault) -> bool:
        """Whether this is an expected outcome."""
        if self.rival or fault.says not in self.detail:
            return False
        return any(self._is(due, fault) for due in fault.due)

    def _is(self, due: Due, fault: Fault) -> bool:
        harmless = self.served not in (SERVED_WRONG, DIED)
        if due is Due.RIGHT:
            return self.fate in (WON, LOST) and self.served in ("", SERVED_RIGHT)
        if due is Due.CONFINED:
            return self.fate == WON and harmless
        if due is Due.MARKED:
            return self.fate == WON and harmless and fault.marked_as in self.marks
        wanted = {Due.WRONG: WRONG, Due.LOSES: LOST, Due.REFUSED: REFUSED}
        return due is Due.UNPROMISED or self.fate == wanted[due]


@dataclass(frozen=True)
class Place:
    """Where kernels of the pool run: the target, and how numpy arrays get there."""

    target: str
    languages: tuple[str, ...]
    calls: Callable[[Any], Call] = lambda loaded: loaded
    forks: bool = True  # whether a process that tuned may be forked to use the winner: a driver forbids it


# Triton's version matters only on CPUs.
_TRITON = ("triton",) if find_spec("triton") and version("triton").startswith("3.9.") else ()
CPU = Place("cpu", ("c", "expression", *_TRITON))


def place_of(target: str) -> Place:
    """The place for a target name: a CPU, or a GPU that torch supports."""
    on_gpu = target.startswith("cuda")
    return Place(target, ("cuda", "triton"), on_torch, forks=False) if on_gpu else Place(target, CPU.languages)


def on_torch(loaded: Any) -> Call:
    """A kernel on a GPU: each numpy array has a persistent tensor with the same layout."""
    import torch

    kept: dict[int, Any] = {}

    def there(array: Any) -> Any:
        off = array.ctypes.data % 16 // array.itemsize
        if id(array) not in kept:
            kept[id(array)] = torch.empty(array.size + off, dtype=torch.from_numpy(array[:1]).dtype, device="cuda")
        tensor = kept[id(array)][off:]
        tensor.copy_(torch.from_numpy(array))
        return tensor

    def call(*arrays: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        placed = {"out": there(out)} if out is not None else {}
        result = loaded(*map(there, arrays), **options, **placed).cpu().numpy()
        if out is None:
            return result
        out[...] = result
        return out

    return call


def tried(fault: Fault, place: Place, folder: Path, cache: Path | None = None, policy: Policy = POLICY) -> Outcome:
    """Tune the fault together with the correct kernel, load the winner and use it."""
    try:
        what = described(fault)
        what, family = what if isinstance(what, tuple) else (what, None)
        study = dg.tune(
            what,
            generator=family,
            target=place.target,
            trials=2,
            strategy="exhaustive",
            policy=policy,
            baselines=False,
            transfer=False,
            second_look=False,
            out=folder,
            engine=dg.LocalEngine(jobs=1, cache=cache),
        )
    except DeepgenError as error:
        return Outcome(WRONG if str(error).startswith(_ALL_WRONG) else REFUSED, str(error))
    finals = study.finals()
    lost = {row.trial: f"finals: {row.verdict.value} {row.detail}" for row in (finals.dropped if finals else ())}
    for trial in study.trials():
        if not trial.measurement.ok:
            lost[trial.id] = f"{trial.measurement.verdict.value} {trial.measurement.detail}"
    if Due.RIGHT in fault.due and lost:  # every config is correct
        return Outcome(WRONG, next(iter(lost.values())))
    # In Triton a fault is a number, in products a name.
    by_fault = {int(trial.config.get("FAULT", 1) not in (0, "NONE")): trial.id for trial in study.trials()}
    rival = lost.get(by_fault[0], "") if 0 in by_fault else ""
    if by_fault[1] in lost:
        return Outcome(WRONG, lost[by_fault[1]], rival=rival)
    if finals is None or finals.winner != by_fault[1]:
        return Outcome(LOST, rival=rival)
    marks = tuple(finals.properties.marks()) if finals.properties else ()
    may_win = {Due.RIGHT, Due.CONFINED, Due.MARKED} & {*fault.due}
    return Outcome(WON, "", _served(study, fault, place) if may_win else "", marks, rival)


def _served(study: dg.Study, fault: Fault, place: Place) -> str:
    """The result of a user calling the winner, in a separate process, which may die."""
    if fault.uses is None:
        return ""
    if not place.forks:
        script = [sys.executable, str(Path(__file__).parent), "--target", place.target]
        done = subprocess.run([*script, "--use", fault.full_name, str(study.folder)], capture_output=True, check=False)
        return done.stdout.decode().strip() or DIED
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            faulthandler.disable()  # dying is an acceptable outcome
            signal.alarm(120)
            os.write(theirs, used(study, fault.uses, place).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer or DIED


def used(study: dg.Study, uses: Callable[[Call], None], place: Place) -> str:
    """The result of the calls of the winner."""
    try:
        uses(place.calls(study.best().load()))
    except AssertionError:
        return SERVED_WRONG
    except DeepgenError:
        return REFUSED
    return SERVED_RIGHT

"""The final check: the loaded kernel in a fresh process, on new inputs, called as a user calls it.

A worker has guard pages, a harness and a supervisor; here a plain interpreter loads the binary and calls it on plain
arrays. Nothing in that process reveals a test. It writes its results to files, which are compared here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen.operators import Operator, Recorded, record
from deepgen.operators.compare import Comparison, compare, explain_element
from deepgen.operators.signature import INPUT, OUTPUT
from deepgen.run.measure import spawn
from deepgen.run.measure.references import sampled
from deepgen.targets import Target
from deepgen.vocabulary import Artifact, Kernel, Measurement, Verdict
from deepgen.vocabulary.folders import Scratch

if TYPE_CHECKING:
    from deepgen.operators import Array, Tensor

_MOST_BYTES = 1 << 30  # of tensors, which are written to files
SECONDS = 60.0  # for the interpreter, its imports and the calls
_DEATH_SIGNAL = 1  # of prctl
_REQUEST, _CALLING, _REPLY = "request.json", "calling", "reply.json"
# The process is killed when its parent ends, so that a call that hangs does not stay behind.
_PROGRAM = """import ctypes, os, sys
ctypes.CDLL(None).prctl({option}, 9, 0, 0, 0)
if os.getppid() != {parent}:
    sys.exit()
sys.path[:] = {path!r}
from deepgen.vocabulary import bytecode
bytecode.keep()
from deepgen.run.measure.afresh import answer
answer({folder!r})
"""


def refusal(operator: Operator, target: Target) -> str | None:
    """Why the kernel cannot be called here or its results compared; None if both are possible."""
    if isinstance(operator, Recorded) or operator.judge() is not None:
        return "its reference is not available here"
    if target.runner not in ("cpu", "gpu"):
        return f"kernels for {target.name} are not called from Python"
    if sum(tensor.bytes for tensor in operator.tensors()) > _MOST_BYTES:
        return "its tensors are too large to pass in files"
    return None


def called_afresh(
    kernel: Kernel,
    artifact: Artifact,
    operator: Operator,
    target: Target,
    seed: int,
    requires: Sequence[tuple[str, str]] = (),
    seconds: float = SECONDS,
) -> Measurement:
    """Call the kernel twice at the same addresses, the second time with other inputs and old results in its outputs."""
    if (why := refusal(operator, target)) is not None:
        return Measurement(Verdict.REFUSED, why)
    sets = [operator.inputs(seed + nth) for nth in range(2)]
    with Scratch("afresh") as scratch:  # `deepgen clean` removes the leftovers of a killed tuner
        folder = scratch.path
        _write(folder, kernel, artifact, operator, target, requires, sets)
        words = {"option": _DEATH_SIGNAL, "parent": os.getpid(), "path": spawn.import_path()}
        program = _PROGRAM.format(folder=str(folder), **words)
        try:
            done = subprocess.run(
                [sys.executable, "-"],
                input=program,
                text=True,
                capture_output=True,
                check=False,
                timeout=seconds,
                cwd=str(folder.parent),  # a folder whose name does not reveal deepgen
                env=spawn.unmarked(),
            )
        except subprocess.TimeoutExpired:
            began = (folder / _CALLING).exists()
            verdict = Verdict.TIMED_OUT if began else Verdict.REFUSED
            return Measurement(verdict, f"{'a call' if began else 'loading'} did not finish within {seconds:.0f} s")
        if not (folder / _CALLING).exists():  # not the kernel's fault
            last = (done.stderr.strip().splitlines() or ["the process ended"])[-1]
            return Measurement(Verdict.REFUSED, f"it could not be loaded in a fresh process: {last}")
        if not (folder / _REPLY).exists():
            last = (done.stderr.strip().splitlines() or ["the process ended"])[-1]
            return Measurement(
                Verdict.CRASHED, f"terminated by signal {-done.returncode}" if done.returncode < 0 else last
            )
        reply = json.loads((folder / _REPLY).read_text())
        if reply["why"]:
            return Measurement(Verdict(reply["verdict"]), str(reply["why"]))
        for nth, inputs in enumerate(sets):
            if wrong := _wrong(operator, inputs, folder, nth):
                return Measurement(Verdict.WRONG, f"call {nth + 1}: {wrong}")
    return Measurement(Verdict.CORRECT)


def _write(
    folder: Path,
    kernel: Kernel,
    artifact: Artifact,
    operator: Operator,
    target: Target,
    requires: Sequence[tuple[str, str]],
    sets: Sequence[Mapping[str, Array]],
) -> None:
    import numpy as np

    for nth, inputs in enumerate(sets):
        for name, array in inputs.items():
            np.save(folder / f"in-{nth}-{name}.npy", array, allow_pickle=False)
    request = {
        "kernel": kernel.without_sources().to_json(),
        "plan": None if artifact.plan is None else artifact.plan.to_json(),
        "binary": str(Path(artifact.binary).absolute()),
        "operator": record(operator).to_json(),
        "target": target.to_json(),
        "requires": [list(pair) for pair in requires],
        "calls": len(sets),
    }
    (folder / _REQUEST).write_text(json.dumps(request))


def _wrong(operator: Operator, inputs: Mapping[str, Array], folder: Path, nth: int) -> str | None:
    """The first wrong element, in words, among a thousand random ones and the corners."""
    import numpy as np

    signature = operator.signature()
    for tensor in operator.tensors():
        if tensor.role == INPUT or not signature[tensor.name].checked:
            continue
        places = sampled(tensor.shape, operator.reference_rows)
        got = np.load(folder / f"out-{nth}-{tensor.name}.npy", allow_pickle=False).reshape(-1)[places]
        answer = operator.reference_at(inputs, tensor.name, places)
        result = compare(got, answer, tensor.dtype, operator.tolerance(tensor.name))
        if result.first is not None:
            index = ", ".join(str(int(i)) for i in np.unravel_index(places[result.first], tensor.shape))
            first = slice(result.first, result.first + 1)
            shown = Comparison(result.error, result.wrong, result.first, len(places))
            where = f"{tensor.name}[{index}]"
            return explain_element(where, got[first], answer.values[result.first], tensor.dtype, shown, None)
    return None


def answer(name: str) -> None:
    """The main function of the fresh process."""
    from deepgen.vocabulary import BadInput, DeepgenError

    folder, verdict, why = Path(name), Verdict.CORRECT, ""
    try:
        _call(folder, json.loads((folder / _REQUEST).read_text()))
    except BadInput as error:
        verdict, why = Verdict.REFUSED, str(error)
    except DeepgenError as error:  # from a device's driver
        verdict, why = Verdict.CRASHED, str(error)
    (folder / _REPLY).write_text(json.dumps({"verdict": verdict.value, "why": why}))


def _call(folder: Path, request: Mapping[str, Any]) -> None:
    import numpy as np

    from deepgen import operators, targets
    from deepgen.run.call.loaded import load
    from deepgen.vocabulary import LaunchPlan

    operator, target = operators.from_json(request["operator"]), targets.from_json(request["target"])
    plan = None if request["plan"] is None else LaunchPlan.from_json(request["plan"])
    requires = tuple((str(test), str(words)) for test, words in request["requires"])
    kernel = load(Kernel.from_json(request["kernel"]), operator, target, Path(request["binary"]), plan, requires)
    place: _Host | _OnDevice = _Host() if target.runner == "cpu" else _OnDevice(target)
    tensors = operator.tensors()
    written = [tensor for tensor in tensors if tensor.role == OUTPUT]
    held = {tensor.name: place.new(tensor) for tensor in tensors}
    (folder / _CALLING).touch()
    for nth in range(request["calls"]):
        for tensor in tensors:
            if tensor.role != OUTPUT:
                place.put(held[tensor.name], np.load(folder / f"in-{nth}-{tensor.name}.npy", allow_pickle=False))
        outputs = tuple(place.passed(held[tensor.name]) for tensor in written)
        out = {} if not outputs else {"out": outputs[0] if len(outputs) == 1 else outputs}
        kernel(**{t.name: place.passed(held[t.name]) for t in tensors if t.role != OUTPUT}, **out)
        for tensor in tensors:
            if tensor.role != INPUT:
                np.save(folder / f"out-{nth}-{tensor.name}.npy", place.get(held[tensor.name]), allow_pickle=False)


class _Host:
    """Plain arrays, initialised with ordinary numbers."""

    def new(self, tensor: Tensor) -> Any:
        array = tensor.empty()
        array[...] = 1
        return array

    def passed(self, held: Any) -> Any:
        return held

    def put(self, held: Any, array: Array) -> None:
        held[...] = array

    def get(self, held: Any) -> Any:
        return held


class _OnDevice:
    """The same in device memory."""

    def __init__(self, target: Target) -> None:
        from deepgen.targets.gpu_driver import APIS, Driver

        self._driver = Driver(APIS[target.languages[0]])

    def new(self, tensor: Tensor) -> Any:
        from deepgen.run.measure.gpu_device import DeviceBuffer

        buffer = DeviceBuffer(self._driver, tensor.name, tensor.bytes)
        buffer.put(_Host().new(tensor))
        return buffer, tensor

    def passed(self, held: Any) -> Any:
        from deepgen.run.measure.gpu_device import DeviceTensor

        buffer, tensor = held
        return DeviceTensor(buffer.start, tensor.shape, tensor.dtype)

    def put(self, held: Any, array: Array) -> None:
        held[0].put(array)

    def get(self, held: Any) -> Any:
        self._driver.synchronize()
        return held[0].get(held[1].empty())

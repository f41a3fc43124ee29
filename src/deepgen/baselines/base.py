"""The interface of baselines: the same operator, by a third-party implementation, on the same buffers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias, runtime_checkable

from deepgen.operators import Operator
from deepgen.operators.signature import INPUT, OUTPUT
from deepgen.targets import Target
from deepgen.vocabulary import BadInput

Timer: TypeAlias = "Callable[[Callable[[], None]], float]"  # the seconds of one run of a call


class Baseline(Protocol):
    """A vendor's or other third party's implementation. It is verified and timed like any kernel.

    If the attribute `on_request` is true, it takes part only when requested by name. An attribute `imports` names
    modules that are slow to import, or is a function of the operator that returns them: they are imported while the
    search is still running and using the device. A baseline with prepacked weights has a static method `ahead`, which
    tells for which operators it is shown by default; libraries never choose it. If `behind` is true, its users' arrays
    begin 16 bytes behind a cache line, as numpy's do, not at one, and it is timed on such arrays.
    """

    @property
    def name(self) -> str: ...

    def missing(self, operator: Operator, target: Target) -> str | None:
        """Why it cannot run here, as a sentence; None if it can. Must not import anything slow."""
        ...

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        """A call that computes the outputs in place, or a NewResult. Called in the worker only.

        The tensors are numpy arrays; on a GPU they have the CUDA array interface, and the call enqueues its work on the
        default stream. A call with an attribute `form` is shown under a name that ends with it: OnCopies has one.
        """
        ...


@dataclass(frozen=True)
class NewResult:
    """For a library that has no call with an output argument. Only `call` is timed; `keep` then copies the result to
    the output.
    """

    call: Callable[[], Any]
    keep: Callable[[Any], object]

    def __call__(self) -> None:
        self.keep(self.call())

    def apart(self) -> tuple[Callable[[], None], Callable[[], object]]:
        """The call, and a function that copies its latest result, if there is one."""
        latest: list[Any] = []

        def call() -> None:
            latest[:] = [self.call()]

        return call, lambda: [self.keep(result) for result in latest]


@dataclass(frozen=True)
class PackedAhead:
    """A call whose weights the library has packed into its own order, as is done once for a model that runs often.

    `pack` repeats the packing when the weights change. `places`: the addresses and sizes in bytes of the packed data,
    which must not be in caches for a cold run. `keep` is that of NewResult.
    """

    call: Callable[[], Any]
    pack: Callable[[], None]
    places: Callable[[], Sequence[tuple[int, int]]] = tuple
    keep: Callable[[Any], object] | None = None
    form: str = "weights packed ahead"
    constant: frozenset[str] = frozenset({"weight"})

    def __call__(self) -> None:
        result = self.call()
        if self.keep is not None:
            self.keep(result)


@dataclass(frozen=True)
class OnCopies:
    """A call of a library without a kernel for such tensors: it copies them, as part of the timed call."""

    call: Callable[..., None]
    form: str = "padded copies"

    def __call__(self, stream: int = 0) -> None:
        self.call(stream)


@runtime_checkable
class Choosing(Protocol):
    """A baseline with several implementations, which picks the fastest, timed in the same way as contenders."""

    def choose(
        self, operator: Operator, tensors: Mapping[str, Any], threads: int, seconds: Timer
    ) -> Callable[[], None]:
        """Used instead of `prepare`."""
        ...


@dataclass(frozen=True)
class FunctionBaseline:
    """A user-defined function. Like a reference, it takes tensors, sizes and scalars by parameter name, and returns the
    outputs: one array, a tuple, or a mapping. On GPUs the tensors are torch tensors.
    """

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        name = getattr(self.function, "__name__", "")
        return name if name.isidentifier() else "baseline"  # a lambda has none

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner not in ("cpu", "gpu"):
            return f"a function of Python does not run on {target.name}"
        return (
            None if target.runner == "cpu" or find_spec("torch") else "torch, whose tensors it takes, is not installed"
        )

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> NewResult:
        import numpy as np

        on_gpu = any(hasattr(tensor, "__cuda_array_interface__") for tensor in tensors.values())
        if on_gpu:
            from deepgen.baselines.torch_gpu import gpu_torch, shared

            tensors = {name: shared(gpu_torch(), tensor) for name, tensor in tensors.items()}
        elif "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        roles = {param.name: param.role for param in operator.signature().params if param.name in tensors}
        inputs = {name: tensors[name] for name, role in roles.items() if role != OUTPUT}
        outputs = [name for name, role in roles.items() if role != INPUT]
        arguments = self._arguments({**operator.sizes(), **operator.values(), **inputs})

        def keep(result: Any) -> None:
            for name, values in self._by_output(result, outputs).items():
                if on_gpu:
                    tensors[name].copy_(values)
                else:
                    np.copyto(tensors[name], np.asarray(values))

        return NewResult(lambda: self.function(**arguments), keep)

    def _arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        wanted = inspect.signature(self.function).parameters.values()
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted):
            return dict(values)
        for p in wanted:
            if p.name not in values and p.default is inspect.Parameter.empty:
                what = f"the baseline {self.name} takes {p.name!r}"
                raise BadInput(what, allowed="tensors, sizes and scalars by name: " + ", ".join(values))
        return {p.name: values[p.name] for p in wanted if p.name in values}

    def _by_output(self, result: Any, outputs: Sequence[str]) -> Mapping[str, Any]:
        if isinstance(result, Mapping):
            return result
        results = result if isinstance(result, (tuple, list)) else [result]
        if len(results) != len(outputs):
            what = f"the baseline {self.name} gave {len(results)} results"
            raise BadInput(what, allowed=f"{len(outputs)}: {', '.join(outputs)}")
        return dict(zip(outputs, results, strict=True))


def baseline_of(thing: Any) -> Baseline | None:
    """The baseline given by a class, a function, a user's own kernel that brings one, or its operator class."""
    if isinstance(thing, type) and isinstance(getattr(thing, "name", None), str) and hasattr(thing, "prepare"):
        baseline: Baseline = thing()
        return baseline
    function = thing if inspect.isfunction(thing) else getattr(thing, "baseline", None)
    return FunctionBaseline(function) if callable(function) else None

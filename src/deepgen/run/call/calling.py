"""A kernel as a Python function: on arrays of any library, cheap enough to be called for small work.

Everything that depends on shapes, strides and dtypes is computed on the first call with them. Later calls set addresses
in prepacked arguments, and run. On a GPU such a call allocates only outputs and does not wait, so it can be captured in
a graph; the first call, which allocates the workspace, cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, TypeAlias, TypeVar

from deepgen.operators import Operator
from deepgen.run.call import plans
from deepgen.run.call.arguments import Admitted, Arguments, admit
from deepgen.run.call.arrays import Maker, allocator, glance, view
from deepgen.run.call.devices import Device
from deepgen.run.call.firing import Apart, Fire, firing
from deepgen.run.call.native import renewed_lock
from deepgen.targets.gpu_driver import DriverError
from deepgen.vocabulary import BadInput, Kernel, dtype, foreign

Arrays: TypeAlias = "dict[str, Any]"
T = TypeVar("T")
_MOST = 1000  # cached bindings, unless they hold device memory


class Ready:
    """The shared part of calls with one kind of arrays: the outputs to allocate, and what to run on addresses."""

    def __init__(self, admitted: Admitted, makers: Mapping[str, Maker]) -> None:
        self.admitted, self.makers = admitted, makers
        self.fire: Fire | None = None  # set when the outputs of the first call exist


class Loaded:
    """A loaded kernel. Call it with the operator's inputs; sizes are taken from them, so it supports many shapes."""

    def __init__(self, kernel: Kernel, operator: Operator, device: Device) -> None:
        self.kernel, self.operator = kernel, operator
        # The function that loads it again in another process, with its arguments.
        self.origin: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._device = device
        self._arguments = Arguments(operator)
        self._signature = operator.signature()
        # Addresses must be multiples of the parameter's and the device's alignment.
        self._aligned = {
            p.name: max(p.align or dtype(self._signature.dtype_of(p)).bytes, device.align)
            for p in self._signature.tensors
        }
        self._ready: dict[Any, Ready] = {}
        self._lock = renewed_lock()

    def __call__(self, /, *inputs: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        """Returns the operator's result: an array, or a tuple of several.

        Inputs are passed in the signature's order or by name, optional ones and run-time scalars by name.
        Results are new arrays of the caller's array library and device, or `out`: an array, or a tuple or mapping of
        several. A tensor that is read and written (C of a GEMM with beta) may be passed as `out` too. On a GPU the call
        is enqueued on `stream`: a handle, a stream object, or by default torch's current stream.
        """
        return self._first(*inputs, out=out, stream=stream, **named)[0]

    def meet(self, *inputs: Any) -> tuple[Any, Fire | None]:
        """Make a call with new outputs. Returns the result, and a function that repeats the call on other arrays of the
        same kind.

        The function takes the addresses of tensors that are read, then of those that are written, each a multiple of
        `align`, and a stream. It is for the calling thread and, on a GPU, the current stream. None: there was nothing
        to run.
        """
        result, ready = self._first(*inputs)
        return result, ready.fire

    @property
    def by_stream(self) -> bool:
        """Whether each stream needs memory of its own, which the first call on it allocates."""
        return self._device.by_stream

    def run_on(self, parallel: int) -> bool:
        """On a CPU, use a host's threads instead of the kernel's own, through the address of a function like OpenMP's
        `GOMP_parallel`. Returns False if the kernel does not support this."""
        return self._device.run_on(parallel)

    @property
    def align(self) -> int:
        """The required alignment of addresses, in bytes."""
        return max(self._aligned.values())

    def workspace_bytes(self, *inputs: Any, out: Any = None, **named: Any) -> int:
        """The memory that a call with these arrays needs, besides its outputs."""
        arrays, values = self._arguments.sort(inputs, out, named)
        admitted = self._admit(arrays, values)
        if admitted.empty:
            return 0
        return sum(size for _, size in plans.workspaces(self.kernel.plan, admitted.scalars).values())

    def close(self) -> None:
        """Free device memory. No call may be running on the device."""
        with self._lock:
            self._ready.clear()
            self._device.close()

    def __repr__(self) -> str:
        about = f"{self.kernel.name} for {self.operator.describe()} on the {self._device.kind}"
        return f"<deepgen kernel {about}: {self._arguments.usage()}>"

    def _repr_html_(self) -> str:
        facts = {
            "operator": self.operator.describe(),
            "runs on": f"the {self._device.kind}",
            "call": self._arguments.usage(),
        }
        serves = "; ".join(words for _, words in self.kernel.requirements)
        return foreign.html_table(
            f"deepgen kernel {self.kernel.name}", facts | ({"requires": serves} if serves else {})
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by origin: a process that unpickles it loads it from there, under the same rules."""
        if self.origin is None:
            raise BadInput(f"{self!r} cannot be pickled", allowed="only a study's kernels: study.best().load()")
        return self.origin

    def _first(self, /, *inputs: Any, out: Any = None, stream: Any = None, **named: Any) -> tuple[Any, Ready]:
        """Make a call; also returns what other calls with such arrays need."""
        arrays, values = self._arguments.sort(inputs, out, named)
        handle = self._device.stream(next(iter(arrays.values())), stream)
        ready = self._call(arrays, values, handle)
        return self._arguments.result(arrays), ready

    def _call(self, arrays: Arrays, values: Mapping[str, int | float], handle: int) -> Ready:
        """Run, after allocating the missing outputs and adding them to `arrays`."""
        seen = [glance(array, name) for name, array in arrays.items()]
        stream = handle if self._device.by_stream else None
        # -0.0 and 0.0 compare equal but differ, so zeros are keyed by their repr.
        numbers = (value or repr(value) for value in values.values())
        key = (*arrays, *(about for about, _ in seen), *numbers, stream, get_ident())
        ready = self._ready.get(key)
        if ready is None:
            with self._lock:
                ready = self._enter(key, arrays, values)
        at = {name: address for name, (_, address) in zip(arrays, seen, strict=True)}
        like = next(iter(arrays.values()))
        for name, make in ready.makers.items():
            arrays[name] = make(like)
            at[name] = glance(arrays[name], name)[1]
        if ready.admitted.empty:
            return ready
        names = [name for name in self._arguments.order if name in at]
        addresses = tuple(at[name] for name in names)
        self._check_aligned(names, addresses)
        if ready.fire is None:
            with self._lock:
                ready.fire = self._surely(lambda: self._bind(ready.admitted, names, arrays))
        fire = ready.fire
        self._surely(lambda: fire(addresses, handle))
        return ready

    def _surely(self, work: Callable[[], T]) -> T:
        """Run `work`, and again if the first attempt shows that this thread was not ready for the device."""
        try:
            return work()
        except DriverError as error:
            self._device.recover(error)
            return work()

    def _enter(self, key: Any, arrays: Arrays, values: Mapping[str, int | float]) -> Ready:
        admitted = self._admit(arrays, values)
        present = [*arrays.values()]
        makers = {
            name: allocator(present, admitted.tensors[name], self._aligned[name])
            for name in self._arguments.written
            if name not in arrays
        }
        if len(self._ready) >= _MOST and not self._device.by_stream:
            self._ready.clear()
        ready = self._ready[key] = Ready(admitted, makers)
        return ready

    def _admit(self, arrays: Arrays, values: Mapping[str, int | float]) -> Admitted:
        views = {name: view(array, name) for name, array in arrays.items()}
        return admit(self.kernel, self.operator, self._device, views, values)

    def _bind(self, admitted: Admitted, names: Sequence[str], arrays: Arrays) -> Fire:
        """Bind the kernel: the slow part, once per kind of arrays and thread."""
        views = {name: view(arrays[name], name).of(admitted.tensors[name].dtype.name) for name in names}
        left_out = dict.fromkeys(p.name for p in self._signature.tensors if p.optional and p.name not in views)
        call = self._device.bind({**views, **left_out}, admitted.scalars)
        return firing(call, names, Apart(views, self._signature))

    def _check_aligned(self, names: Sequence[str], addresses: Sequence[int]) -> None:
        for name, address in zip(names, addresses, strict=True):
            if address % self._aligned[name]:
                raise BadInput(f"{name} is not {self._aligned[name]}-byte aligned", allowed="pass an aligned copy")

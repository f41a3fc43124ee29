"""Routes torch calls to kernels; timings decide when a kind of call is first seen.

A kind is what a kernel depends on: the shapes, strides, dtypes and devices of a call's tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import cycle
from math import inf
from operator import add, or_
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from deepgen import targets
from deepgen.frontends.torch.calls import KINDS, Alike
from deepgen.frontends.torch.products import Asked, Reads
from deepgen.frontends.torch.race import (
    COMPILED,
    EAGER,
    GRAPH,
    PLAIN,
    Calls,
    Forms,
    Met,
    Views,
    Won,
    capturing,
    capturing_now,
    contiguous,
    crowds,
    elsewhere,
    lend,
    made_real,
    race,
    race_for_cores,
    viewed,
)
from deepgen.libraries import Library
from deepgen.operators import Operator
from deepgen.operators.filling import INF, NAN
from deepgen.run.call.arrays import torch_maker
from deepgen.run.call.calling import Loaded
from deepgen.run.call.firing import Fire
from deepgen.run.call.native import renewed_lock
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, DeepgenError

TORCH = ("torch", "torch-gpu")  # torch's names as a baseline
KINDS_DECIDED = 500  # maximum kinds of calls: if shapes never repeat, deciding would cost more than kernels gain
KINDS_KEPT = 20 * KINDS_DECIDED  # with those that are like one that was decided
LAUNCH = 2e-6  # seconds that an extra launch costs when launches follow each other closely
_UNKNOWN = 1.0  # seconds, in place of an unknown gain
_MOST = 1000  # threads and streams with a cached binding per route


class Route:
    """A kernel for one kind of call. `gain`: the seconds per call saved compared with torch.

    `called`: it serves calls. If its calls take more CPU time than torch's, it serves only CUDA graphs, whose replays
    make no calls (`captured`), and compiled code (`compiled`; None: if its faster way of calling pays off).
    """

    __slots__ = (
        "_device", "_failed", "_fires", "_for_graphs", "_loaded", "_offsets", "_others", "_read", "align", "called",
        "calls", "captured", "compiled", "dtype", "gain", "make", "on_gpu", "places", "raced", "shape", "strides",
        "two",
    )  # fmt: skip

    def __init__(self, asked: Asked, read: Reads, won: Won, args: tuple[Any, ...]) -> None:
        self._others = tuple(None if place in asked.places else arg for place, arg in enumerate(args))
        self.shape, self.dtype, self.places, self._read = asked.shape, asked.dtype, asked.places, asked.again or read
        self._loaded, self.align, self.calls, self._offsets = won.kernel, won.kernel.align, won.calls, asked.offsets
        self.gain, self.raced, self.two = won.gain, won.raced, asked.two
        self.called, self.captured, self.compiled = won.serves_in()
        self._device = asked.tensors[0].get_device()
        self.on_gpu = bool(self._device >= 0)
        self.strides = asked.strides or contiguous(asked.shape)
        self.make = torch_maker(asked.shape, self.strides, asked.dtype, asked.tensors[0].device)
        self._fires: dict[Any, Fire] = {}
        self._for_graphs: Fire | None = None
        self._failed = False

    def run(self, args: tuple[Any, ...], out: Any = None) -> Any:
        """The result of a call, in `out` if given; None if a tensor does not satisfy the kernel's requirements."""
        if self._failed:
            return None
        stream = _stream(self._device) if self.on_gpu else 0
        fire = self._fires.get(self._place(stream))
        result = self._tried(self._meet if fire is None else partial(self._fired, fire), args, stream, out)
        if result is None:
            self.calls.refused += 1
        else:
            self.calls.in_python += 1
        return result

    def _tried(self, run: Run, *args: Any) -> Any:
        """The result of a call; None if there is none."""
        try:
            return run(*args)
        except (RuntimeError, BadInput):  # a tensor without its own memory, such as those of vmap, or a slice
            return None
        except DeepgenError as error:
            return self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A kernel that fails serves no more, and says so once."""
        first, self._failed = not self._failed, True
        self._fires.clear()
        if first:
            warnings.warn(f"a kernel failed, and torch serves such calls from now on: {error}", RuntimeWarning, 3)

    def ready(self, args: tuple[Any, ...] | None = None) -> Fire | None:
        """The function that runs calls on this thread. With `args`, a first call with these is made if needed."""
        stream = _stream(self._device) if self.on_gpu else 0
        if args is not None and self._place(stream) not in self._fires and not self._failed:
            self._tried(self._meet, args, stream, None)
        return self._fires.get(self._place(stream))

    @property
    def saves(self) -> float:
        """Upper limit of the seconds saved per call, on the GPU or on the CPU. An unknown gain counts as larger than
        any cost.
        """
        calling = self.raced.calling if self.raced is not None else None
        return max(0.0, min(self.gain, _UNKNOWN), 0.0 if calling is None else calling[1] - calling[0])

    @property
    def idle(self) -> bool:
        """Whether torch should serve the current call, or the graph that is being captured."""
        return not (self.captured if self.on_gpu and capturing_now() else self.called)

    def quick(self, reads: int = 3, *, fitting: bool = False, views: Views = (None, None)) -> Callable[..., Any]:
        """Like `run`, for tensors like those of an earlier call: only their addresses are checked.

        It takes the tensors that the operator reads, in its order: up to three if `out` may be given. `fitting`: `out`
        is known to fit. `views`: in place of the first two tensors, the tensors that they are views of are passed.
        """
        if reads > 3:
            return lambda *tensors: self.run(self._whole(tensors))
        device, on_gpu, fires, align, make = self._device, self.on_gpu, self._fires, self.align, self.make
        by_stream, fits, calls = self._by_stream, self._fits, self.calls

        def run(a: Any, b: Any = None, c: Any = None, out: Any = None) -> Any:
            """Without loops: this code takes about as long as a launch."""
            stream = _stream(device) if on_gpu else 0
            fire = fires.get((get_ident(), stream) if by_stream else get_ident())
            if fire is None:
                return self.run(self._whole((*viewed(a, b, views), c)), out)
            if out is None:
                out = make()
            elif not fitting and not fits(out):
                calls.refused += 1
                return None
            at_a, at_out = a.data_ptr(), out.data_ptr()
            at: tuple[int, ...]
            if b is None:
                at, bits = (at_a, at_out), at_a | at_out
            elif c is None:
                at_b = b.data_ptr()
                at, bits = (at_a, at_b, at_out), at_a | at_b | at_out
            else:
                at_b, at_c = b.data_ptr(), c.data_ptr()
                at, bits = (at_a, at_b, at_c, at_out), at_a | at_b | at_c | at_out
            if bits % align:
                calls.refused += 1
                return None
            try:
                fire(at, stream)
            except BadInput:  # `out` overlaps an input
                calls.refused += 1
                return None
            except (RuntimeError, DeepgenError) as error:
                calls.refused += 1
                return self._give_up(error)
            calls.in_python += 1
            return out

        return run

    def eager(self, quick: Callable[..., Any]) -> Callable[..., Any]:
        """A function that serves single calls through `quick`; it returns None if torch should serve them."""
        if self.called and self.captured:
            return quick
        return lambda *args, **named: None if self.idle else quick(*args, **named)

    def _whole(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a call with these tensors."""
        args = {**dict(enumerate(self._others)), **dict(zip(self.places, tensors, strict=False))}
        return tuple(args.values())

    @property
    def _by_stream(self) -> bool:
        return self.on_gpu and self._loaded.by_stream

    def _place(self, stream: int) -> Any:
        """The key of a cached binding: the thread, since a binding stores addresses, and the stream where needed."""
        return (get_ident(), stream) if self._by_stream else get_ident()

    def _fired(self, fire: Fire, args: tuple[Any, ...], stream: int, out: Any) -> Any:
        if out is None:
            out = self.make()
        elif not self._fits(out):
            return None
        at = (*[args[place].data_ptr() for place in self.places], out.data_ptr())
        at = (*map(add, at, self._offsets), at[-1]) if self._offsets else at
        at = (*at, at[-1] + out.nbytes // 2) if self.two else at
        if reduce(or_, at) % self.align:
            return None
        fire(at, stream)
        return out

    def _fits(self, out: Any) -> bool:
        if type(out) not in PLAIN or out.requires_grad:
            return False
        wanted = self.shape, self.strides, self.dtype, self._device
        return (out.shape, out.stride(), out.dtype, out.get_device()) == wanted

    def _meet(self, args: tuple[Any, ...], stream: int, out: Any) -> Any:
        """The first call on a thread and stream. No memory can be allocated during the capture of a graph, and each
        capture has its own stream, so a kernel that needs memory keeps some for captures. Graphs share it, so two of
        them must not be replayed at the same time.
        """
        asked = self._read(*args)
        fits = out is None or self._fits(out)
        if asked is None or not fits or any(tensor.data_ptr() % self.align for tensor in asked.tensors):
            return None
        if self._by_stream:
            if capturing(asked.tensors[0].device):
                return None if self._for_graphs is None else self._fired(self._for_graphs, args, stream, out)
            if self._for_graphs is None:
                with torch.cuda.stream(torch.cuda.Stream()):
                    _, self._for_graphs = self._loaded.meet(*asked.tensors)
        result, fire = self._loaded.meet(*asked.tensors)
        if fire is not None:
            if len(self._fires) >= _MOST:
                self._fires.clear()
            self._fires[self._place(stream)] = fire
        result = (torch.stack(result) if self.two else result).as_strided(self.shape, self.strides)
        return result if out is None else out.copy_(result)


Table: TypeAlias = "dict[Any, Route | None]"
Run: TypeAlias = "Callable[..., Any]"
Door: TypeAlias = "Callable[[Route], Run]"
# Costs as much as a call through our function, which looks up the route first.
_STRAIGHT: Door = lambda route: lambda *args: route.run(args)  # noqa: E731


class Router:
    """The routes of one library."""

    def __init__(self, library: Library, *, race: bool = True, form: str = EAGER) -> None:
        self._library, self._race, self._form = library, race, form
        self._targets: dict[str, Target | None] = {}
        self._winners: dict[Any, Won | None] = {}
        self._routes: Table = {}
        self._raced = 0  # kinds that were looked up, and timed if a kernel serves them
        self._alike: Alike[Won | str] = Alike()
        tuned: Sequence[Any] = getattr(library, "list", tuple)()
        self._tuned = {timed.operator for entry in tuned for timed in getattr(entry, "timed", ())}
        self._lock = renewed_lock()
        self._decider: int | None = None
        self.met: list[Met] = []
        self.has_kernels = False  # whether a call was seen for which the library has a kernel
        # Wraps a function so that torch's own kernels serve all its calls.
        self.alone: Callable[[Run], Run] = lambda function: function

    @property
    def deciding(self) -> bool:
        """Whether this thread is deciding on a call right now: torch's own functions call each other."""
        return self._decider == get_ident()

    def route(
        self, kind: str, args: tuple[Any, ...], torchs: Run, door: Door | None = None, read: Reads | None = None
    ) -> Route | None:
        """The kernel for calls like this one; None: torch should serve them.

        `torchs` is torch's own function. `door` returns what is run for calls by a route, if that is more than its
        kernel. `read` determines the operator of a call, for kinds not in `calls`.
        """
        read = read or KINDS[kind]
        asked = read(*args)
        if asked is None:
            return None
        key = (asked.operator, str(asked.tensors[0].device), *(tensor.stride() for tensor in asked.tensors))
        whole = (kind, asked.shape, asked.strides, *key)
        with self._lock:
            if whole not in self._routes:
                if len(self._routes) >= KINDS_KEPT or self._raced >= KINDS_DECIDED:
                    return None
                if key not in self._winners:
                    self._winners[key] = self._won(asked, read, args, torchs, door or _STRAIGHT)
                won = self._winners[key]
                self._routes[whole] = None if won is None else Route(asked, read, won, args)
            return self._routes[whole]

    def _won(self, asked: Asked, read: Reads, args: tuple[Any, ...], torchs: Run, door: Door) -> Won | None:
        """What serves a kind of call that was not seen before; None: torch."""
        decided = None if asked.operator in self._tuned else self._alike.find(asked.operator, asked.tensors)
        if decided is None or (isinstance(decided, Won) and not decided.serves(asked.operator)):
            self._raced, self._decider = self._raced + 1, get_ident()
            try:
                decided = self.alone(self._decide)(asked, read, args, torchs, door)
            finally:
                self._decider = None
            ours = isinstance(decided, Won)
            about = (decided.why, decided.calls) if isinstance(decided, Won) else (decided,)
            self.met.append(Met(asked.operator, ours, *about))
        return decided if isinstance(decided, Won) else None

    def add(self, route: Route, why: str) -> None:
        """Add to the explanation of a kind of call that was seen."""
        for place, met in enumerate(self.met):
            if met.calls is route.calls and why not in met.why:
                self.met[place] = replace(met, why=f"{met.why}; {why}")

    def _decide(self, asked: Asked, read: Reads, args: tuple[Any, ...], torchs: Run, door: Door) -> Won | str:
        """The kernel, or the reason why torch serves."""
        device = asked.tensors[0].device
        target = self._target(device)
        if target is None or any(tensor.device != device for tensor in asked.tensors):
            return f"deepgen has no target for {device}"
        choice = self._library.choose(asked.operator, target, TORCH)
        if choice.entry is None:
            return choice.reason
        self.has_kernels = True
        if lost := choice.entry.properties.loses():
            return f"the kernel does not handle {' and '.join(lost)} as torch does"
        special = (NAN, INF) if "special" in asked.operator.probes() else asked.operator.float_probes()
        if untried := choice.entry.properties.untried(special):
            return f"the kernel was not tested with {' and '.join(untried)}: run `deepgen retest` and add it again"
        forms = self._forms(asked.operator, choice.entry, target)
        decided = forms.decide(on_gpu=device.type == "cuda")
        if decided and not forms.any:
            return "recorded models are faster with torch here"
        theirs = [one.seconds for one in choice.considered if one.name in TORCH and one.seconds is not None]
        gain = min(theirs) - choice.seconds if theirs and choice.seconds is not None else inf
        try:
            kernel = choice.load()
            if not isinstance(kernel, Loaded):
                return choice.reason
            why = "recorded models are faster with it" if decided else "according to the library's times"
            library = Won(kernel, gain, why, forms=forms)
            if gain < 0.0 and not decided and (capturing(device) or not self._race):
                return choice.reason  # for a library, ours is as fast within the noise; here nothing may be slower
            lent = device.type == "cpu" and lend(kernel)
            if capturing(device):
                return library
            with _disable_current_modes():
                real = made_real(args)
                route = Route(asked, read, replace(library, calls=Calls()), args)  # trial calls are not counted
                if route.run(real) is None:
                    return "the kernel needs dense or better aligned tensors"
                if decided or not self._race:
                    return library
                tensors = cycle((real,) if device.type == "cpu" else (real, elsewhere(real)))
                run = door(route)
                both = (lambda: run(*next(tensors)), lambda: torchs(*next(tensors)))
                raced = race_for_cores(*both) if crowds(choice.entry, device, lent) else race(*both, device)
        except DeepgenError as error:
            return f"the kernel cannot be called: {error}"
        gains = raced.won or raced.called
        forms = forms if gains else forms.without_race()
        won = Won(kernel, raced.other - raced.mine, str(raced), raced, entry=choice.entry, forms=forms)
        outcome = won if gains or forms.any else str(raced)
        if not getattr(choice, "measured", False):
            self._alike.add(asked.operator, asked.tensors, outcome)
        return outcome

    def _forms(self, operator: Operator, entry: Any, target: Target) -> Forms:
        """What the times of recorded models say about a kernel; nothing for libraries without them."""
        ask = getattr(self._library, "by_models", None)
        if ask is None:
            return Forms()
        where = target.device_kind, torch.get_num_threads() if target.runner == "cpu" else None
        return Forms(*(ask(operator, entry.kernel_id, form, *where) for form in (self._form, COMPILED, GRAPH)))

    def _target(self, device: Any) -> Target | None:
        """The target whose kernels run on a device; kernels are loaded only on the first GPU."""
        name = str(device)
        if name not in self._targets:
            kind = {"cpu": "cpu", "cuda:0": "hip:native" if torch.version.hip else "cuda:native"}.get(name)
            self._targets[name] = None
            with suppress(DeepgenError):
                self._targets[name] = None if kind is None else targets.resolve(kind)
        return self._targets[name]


# Twenty times faster than the public function. A torch without GPU support lacks it.
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)

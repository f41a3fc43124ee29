"""A tuned GPU kernel as a Python function on device arrays, cheap enough to be called for small work.

A call sets addresses in arguments that were packed when its shape was first seen, and launches. It allocates nothing
and waits for nothing, so it can be captured in a graph; the first call of a shape, which makes the workspace, cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, TypeAlias

from deepgen.operators import Gemm
from deepgen.runtime.device_arrays import View, stream_handle, view
from deepgen.runtime.gpu_driver import APIS, Driver, DriverError, Launch
from deepgen.runtime.gpu_kernel import BoundPlan, GpuKernel
from deepgen.runtime.overlap import Apart
from deepgen.runtime.shapes import check_shape
from deepgen.vocabulary import BadInput, Kernel, WorkspaceArg

_NAMES = ("A", "B", "C")
_ALIGN = 16  # kernels load up to this many bytes at once
_NO_CONTEXT = 201


# Sets the tensors' addresses and launches on a stream.
_Fire: TypeAlias = Callable[[Sequence[int], int], None]


def _firing(plans: Sequence[BoundPlan], names: Sequence[str], apart: Apart) -> _Fire:
    """Of plans bound to one shape, strides, thread and, where they have scratch memory, one stream.

    Threads have bindings of their own: one may set addresses while another launches.
    """
    slots = [[slot for plan in plans for slot in plan.slots(name)] for name in names]
    launch = plans[0].single if len(plans) == 1 else None
    if launch is not None and [len(some) for some in slots] == [1, 1, 1]:
        return _firing_once(launch, apart, *(some[0] for some in slots))

    def fire(addresses: Sequence[int], stream: int) -> None:
        apart.check(addresses)
        for some, address in zip(slots, addresses, strict=True):
            for slot in some:
                slot.value = address
        for plan in plans:
            plan.run(stream)

    return fire


def _firing_once(launch: Launch, apart: Apart, a: Any, b: Any, c: Any) -> _Fire:
    """One launch of three tensors: what is called most, and where every tenth of a microsecond shows."""
    on = 0
    (before_a, after_a), (before_b, after_b) = apart.within["A"], apart.within["B"]

    def fire(addresses: Sequence[int], stream: int) -> None:
        nonlocal on
        at_a, at_b, at_c = addresses
        if before_a < at_c - at_a < after_a or before_b < at_c - at_b < after_b:
            apart.look(addresses)
        a.value, b.value, c.value = addresses
        if stream != on:
            launch.on(stream)
            on = stream
        launch.fire()

    return fire


class LoadedGpuKernel:
    """Call it with the operator's inputs on the GPU; sizes and strides are taken from them."""

    def __init__(self, kernel: Kernel, operator: Gemm, binary: Path, device: int = 0) -> None:
        self.kernel, self.operator = kernel, operator
        self._driver = Driver(APIS[kernel.language], device)
        self._loaded = GpuKernel.read(self._driver, kernel, binary)
        self._scratch = any(
            isinstance(a, WorkspaceArg) for s in (*kernel.plan.prepare, *kernel.plan.steps) for a in s.args
        )
        self._calls: dict[Any, _Fire] = {}
        self._lock = Lock()
        self._owned: list[int] = []
        self._torch_stream: Callable[[int], int] = self._find_torch_stream

    def __call__(
        self, a: Any, b: Any, *, out: Any = None, bias: Any = None, scale: Any = None, stream: Any = None
    ) -> Any:
        """C from A and B, enqueued on `stream`: a handle, a stream object, or by default torch's current stream.

        Without `out` the result is a new torch tensor. With beta, `out` must be given and holds C before and after.
        `out` may lie between the rows of A or B, as slices of one buffer do, but share no element with them.
        """
        if out is None:
            out = self._new_output(a, b)
        key: Any = None
        try:  # Tensors of torch are what is called most: no loop, no detour.
            device = a.get_device()
            handle = self._torch_stream(device) if stream is None else stream_handle(stream)
            at_a, at_b, at_c = a.data_ptr(), b.data_ptr(), out.data_ptr()
            if (at_a | at_b | at_c) % _ALIGN:
                _refuse(_NAMES, (at_a, at_b, at_c))
            addresses: tuple[int, ...] = (at_a, at_b, at_c)
            key = (
                a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, out.shape, out.stride(), out.dtype,
                device, b.get_device(), out.get_device(), handle if self._scratch else None, get_ident(),
            )  # fmt: skip
        except AttributeError:
            handle = 0 if stream is None else stream_handle(stream)
        if key is None or bias is not None or scale is not None:
            key, addresses = self._look(_named(a, b, out, bias, scale), handle)
        fire = self._calls.get(key)
        if fire is None:
            with self._lock:
                views = {name: view(array) for name, array in _named(a, b, out, bias, scale).items()}
                fire = self._calls[key] = self._bind(views)
        try:
            fire(addresses, handle)
        except DriverError as error:
            if error.code != _NO_CONTEXT:
                raise
            self._driver.enter()  # a thread that has not used the GPU before
            fire(addresses, handle)
        return out

    def close(self) -> None:
        """Give the workspaces back and unload the module. No call may be under way on the device."""
        with self._lock:
            for address in self._owned:
                self._driver.free(address)
            self._owned.clear()
            self._calls.clear()
            self._loaded.close()

    def _bind(self, views: Mapping[str, View]) -> _Fire:
        """The slow way, once for each shape: everything is checked here."""
        gemm = self._served(views)
        for name in views.keys() - {tensor.name for tensor in gemm.tensors()}:
            raise BadInput(f"{name} is given to a kernel that adds none", allowed="a call without it")
        for tensor in gemm.tensors():
            if tensor.name not in views:
                raise BadInput(f"{gemm.describe()} needs {tensor.name}", allowed=f"pass it as {tensor.name}=")
            _check(tensor.name, views[tensor.name], tensor.shape, tensor.dtype.name)
        shapes = {t.name: (t.shape, t.dtype.name) for t in gemm.tensors()}
        addresses = {name: seen.address for name, seen in views.items()}
        scalars = _scalars(gemm, views)
        check_shape(self.kernel, scalars)
        bound = self._loaded.bind(addresses, scalars, self._allocate, shapes)
        plans = (bound.prepare, bound.run) if self.kernel.plan.prepare else (bound.run,)
        return _firing(plans, tuple(views), Apart(views))

    def _served(self, views: Mapping[str, View]) -> Gemm:
        a, b, op = views["A"].shape, views["B"].shape, self.operator
        if len(a) != len(b) or len(a) not in (2, 3):
            raise BadInput(f"A has {len(a)} and B {len(b)} dimensions", allowed="2 each, or 3 with a batch")
        m, k = a[-2:] if op.layout[0] == "n" else a[:-3:-1]
        kb, n = b[-2:] if op.layout[1] == "n" else b[:-3:-1]
        if k != kb:
            raise BadInput(f"A has K={k} and B has K={kb} in layout {op.layout}", allowed="the same K in both")
        return replace(op, m=m, n=n, k=k, batch=a[0] if len(a) == 3 else 1)

    def _new_output(self, a: Any, b: Any) -> Any:
        if self.operator.beta != 0.0:
            raise BadInput("this kernel adds beta * C: it needs C", allowed="pass it as out=")
        if not hasattr(a, "new_empty"):
            raise BadInput(f"no output given for arrays of {type(a).__name__}", allowed="pass it as out=")
        gemm = self._served({"A": view(a), "B": view(b)})
        c = next(t for t in gemm.tensors() if t.name == "C")
        if gemm.c == gemm.a:
            return a.new_empty(c.shape)
        raise BadInput(f"the result is {gemm.c}", allowed="pass it as out=")

    def _look(self, arrays: Mapping[str, Any], handle: int) -> tuple[Any, tuple[int, ...]]:
        """What a call with these arrays depends on, and their addresses."""
        names, views = tuple(arrays), [view(array) for array in arrays.values()]
        told = tuple((seen.shape, seen.strides, seen.dtype) for seen in views)
        _refuse(names, [seen.address for seen in views])
        return (names, told, handle if self._scratch else None, get_ident()), tuple(seen.address for seen in views)

    def _find_torch_stream(self, device: int) -> int:
        """torch's current stream; from the second call on without this detour."""
        self._torch_stream = _torch_stream()
        return self._torch_stream(device)

    def _allocate(self, arg: WorkspaceArg, size: int) -> int:
        address = self._driver.alloc(size)
        self._owned.append(address)
        return address

    def __repr__(self) -> str:
        return f"<deepgen kernel {self.kernel.name} for {self.operator.describe()} on {self.kernel.language}>"


def _named(a: Any, b: Any, out: Any, bias: Any, scale: Any) -> dict[str, Any]:
    """The arrays of a call, A, B and C first."""
    more = {name: array for name, array in (("bias", bias), ("scale", scale)) if array is not None}
    return {"A": a, "B": b, "C": out, **more}


def _refuse(names: Sequence[str], addresses: Sequence[int]) -> None:
    """Raises when one of the arrays is not aligned."""
    for name, address in zip(names, addresses, strict=True):
        if address % _ALIGN:
            raise BadInput(f"{name} lies at an address that is no multiple of {_ALIGN}", allowed="a copy of it")


def _scalars(gemm: Gemm, views: Mapping[str, View]) -> dict[str, int | float]:
    """The operator's scalars with the strides that the arrays really have."""
    out = dict(gemm.scalars())
    for name, letter in (("A", "a"), ("B", "b"), ("C", "c")):
        strides = views[name].strides
        out[f"ld{letter}"] = strides[-2]
        if len(strides) == 3:
            out[f"stride_{letter}"] = strides[0]
    return out


def _check(name: str, seen: View, shape: tuple[int, ...], dtype: str) -> None:
    stored = "f32" if dtype == "tf32" else dtype
    if seen.dtype != stored or seen.shape != shape:
        raise BadInput(f"{name} is {seen.dtype} {seen.shape}", allowed=f"{stored} {shape}")
    if seen.strides[-1] != 1 and shape[-1] > 1:
        raise BadInput(f"{name} is not row-major: neighbours lie {seen.strides[-1]} apart", allowed="a contiguous copy")


def _torch_stream() -> Callable[[int], int]:
    """From the number of a device to the handle of torch's current stream."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # twenty times quicker than the public way
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))

"""torch.compile: replaces products in a compiled graph by deepgen's where a kernel is faster, without graph breaks.

While tracing, torch's own functions are called, so that every graph is the usual one. When Inductor receives it, with
known shapes, single products are replaced. Its generated code calls them like torch's: one function for each kernel,
with `out=`. The tensors have the properties they had at compilation, so the only lookup is the kernel's binding to a
thread, and only addresses are checked. Products with what follows them are replaced as a whole where a kernel takes
less time than torch's products alone: what Inductor makes of the rest is not known yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from deepgen.frontends.torch.fused_products import exchange_regions
from deepgen.frontends.torch.ops import OPS, REGIONS, TORCHS, scaled_mm, two_scales_mm
from deepgen.frontends.torch.products import torch_scaled_mm
from deepgen.frontends.torch.race import View, Views, calling, elsewhere, made_real, viewed
from deepgen.frontends.torch.routes import LAUNCH, Route, Router
from deepgen.frontends.torch.scaled import PRODUCT, Factors, by_scales

Call = Callable[..., Any]
_ATEN = torch.ops.aten
_EXCHANGED = {
    _ATEN.mm.default: ("mm", OPS.mm.default),
    _ATEN._int_mm.default: ("int_mm", OPS.int_mm.default),
    _ATEN.bmm.default: ("bmm", OPS.bmm.default),
    _ATEN.addmm.default: ("addmm", OPS.addmm.default),
}
_OURS = {
    **{ours: kind for kind, ours in _EXCHANGED.values()},
    OPS.scaled_mm.default: "scaled_mm",
    OPS.two_scales_mm.default: "two_scales_mm",
}
# torch's own functions, used when a kernel cannot be called after all.
_TORCHS: Mapping[str, Call] = {
    **{kind: TORCHS[kind] for kind in ("mm", "int_mm", "bmm", "addmm")},
    "scaled_mm": scaled_mm,
    "two_scales_mm": two_scales_mm,
    "region": lambda *tensors, out: tensors[-1].products(*tensors[:-1]),
}
_WARM = 4  # untimed warm-up calls: with two sets of tensors, scales are cached after two calls of each
_routers: list[Router] = []  # at most one
_externs: dict[tuple[str, Route, tuple[Any, ...], Views], Any] = {}
_paying: dict[tuple[str, Route], str] = {}


def loaded() -> bool:
    """Whether torch's compiler is imported. That takes seconds, so it is deferred until something is compiled."""
    return "torch._dynamo" in sys.modules


@cache
def load() -> None:
    """Import the compiler. It looks up torch's functions by name, so they must be in place during the import."""
    import torch._dynamo.trace_rules
    import torch._inductor.lowering

    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    # After a graph break our functions are called from plain Python, and would be compiled themselves.
    torch._dynamo.trace_rules.add("deepgen")


def enter(router: Router) -> Callable[[], None]:
    """From now on, compile graphs with this router's kernels; returns a function that ends it."""
    from torch._inductor import config

    before = config.post_grad_custom_pre_pass
    config.post_grad_custom_pre_pass = _pass(router, before)
    _register()
    _routers.append(router)

    def leave() -> None:
        config.post_grad_custom_pre_pass = before
        _routers.remove(router)

    return leave


def _pass(router: Router, before: Any) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Exchange(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            if before is not None:
                before(graph)
            exchange(graph, router)

        def uuid(self) -> None:
            """None, so that compiled graphs are not cached across processes: each decides what is faster."""

    return Exchange()


def exchange(graph: Any, router: Router) -> None:
    """Replace torch's products by ours where a kernel is faster."""
    if not _in_python():
        return
    exchange_regions(graph, router, partial(_pays, router))
    for node in [*graph.nodes]:
        if node.op != "call_function":
            continue
        if node.target in _EXCHANGED and not node.kwargs:
            kind, ours = _EXCHANGED[node.target]
            values = _values(node.args)
            route = _route(router, kind, values)
            if route is not None and _pays(router, route, kind, values, node):
                node.target = ours
        elif node.target is _ATEN._scaled_mm.default:
            _exchange_scaled(graph, node, router)


def _exchange_scaled(graph: Any, node: Any, router: Router) -> None:
    """Torch has one scale for each matrix, ours one for the product of the matrices.

    Scales that are graph inputs are multiplied when the graph is called, unless they are unchanged. Scales computed in
    the graph are multiplied in it, which costs one more launch. So are all of them if CUDA graphs replay it: replays
    make no Python calls, and must read the current scales.
    """
    names = [argument.name for argument in node.target._schema.arguments]
    named = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    a, b, one, other = (named[name] for name in ("self", "mat2", "scale_a", "scale_b"))
    fast = bool(named.get("use_fast_accum", False))
    rest: dict[str, Any] = {name: named.get(name) for name in ("bias", "scale_result", "out_dtype")}
    in_a, in_b, in_one, in_other = _values((a, b, one, other))
    if in_other.dtype != torch.float32 or torch_scaled_mm(in_a, in_b, in_one, in_other, **rest) is None:
        return
    product = in_one * in_other
    scales: tuple[Any, ...] = (one, other)
    route = _route(router, "scaled_mm", (in_a, in_b, product, fast))
    if route is None:
        return
    if not _replayed() and _stays(one) and _stays(other):
        if not _pays(router, route, "two_scales_mm", (in_a, in_b, in_one, in_other, fast), node):
            return
        kind = OPS.two_scales_mm.default
    else:
        least = PRODUCT if route.on_gpu and not _replayed() else LAUNCH
        if route.gain < least or not _pays(router, route, "scaled_mm", (in_a, in_b, product, fast), node):
            return
        with graph.inserting_before(node):
            factor = graph.call_function(_ATEN.mul.Tensor, (one, other))
        factor.meta["val"] = product
        kind, scales = OPS.scaled_mm.default, (factor,)
    with graph.inserting_before(node):
        ours = graph.call_function(kind, (a, b, *scales, fast))
    ours.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(ours)
    graph.erase_node(node)


def _stays(node: Any) -> bool:
    """Whether a tensor is an input or a constant of a graph, and the graph does not write it."""

    def reads(user: Any) -> bool:
        schema = getattr(user.target, "_schema", None)
        return user.op == "output" or (schema is not None and not schema.is_mutable)

    return node.op in ("placeholder", "get_attr") and all(map(reads, node.users))


def _in_python() -> bool:
    """Whether Inductor generates Python code. Its other outputs cannot call our functions."""
    from torch._inductor import config

    return not (config.cpp_wrapper or getattr(config, "fx_wrapper", False))


def _replayed() -> bool:
    """Whether Inductor will capture CUDA graphs of the compiled code, as with `mode="reduce-overhead"`."""
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


def _pays(router: Router, route: Route, kind: str, values: tuple[Any, ...], node: Any) -> bool:
    """Whether a kernel gains more than its calls cost, and its result has the same layout as torch's."""
    if node.meta["val"].stride() != route.strides:
        return False
    if _replayed():
        return route.captured
    if route.compiled is not None:
        return route.compiled
    why = costs(kind, route, values)
    if why:
        router.add(route, why)
    return not why


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors as they were traced."""
    return tuple(arg if type(arg) is bool else arg.meta["val"] for arg in args)


def _route(router: Router, kind: str, values: tuple[Any, ...]) -> Route | None:
    """The kernel for a product in a graph."""
    return router.route(kind, values, _scaled_mm() if kind == "scaled_mm" else TORCHS[kind])


def _scaled_mm() -> Callable[..., Any]:
    """torch's function for the race, with a second scale that is created once."""
    ones: list[Any] = []

    def run(a: Any, b: Any, scale: Any, fast: bool) -> Any:
        if not ones:
            ones.append(torch.ones_like(scale))
        return TORCHS["scaled_mm"](a, b, scale, ones[0], out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


def _register() -> None:
    """Register deepgen's operators with Inductor, once."""
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings, register_lowering
    from torch._inductor.virtualized import V

    if OPS.mm.default in lowerings:
        return

    def inputs_of(tensors: Any, values: Any) -> list[Any]:
        pairs = zip(tensors, values, strict=True)
        return [ir.ExternKernel.require_exact_strides(ir.ExternKernel.realize_input(a), b.stride()) for a, b in pairs]

    def output_of(choice: Any, inputs: list[Any]) -> Any:
        result = V.graph.current_node.meta["val"]
        layout = ir.FixedLayout(result.device, result.dtype, [*result.shape], [*result.stride()])
        output = choice.bind(inputs, layout).output_node()
        return output[0] if isinstance(output, tuple) else output

    def lower_region(tensors: Any, number: int) -> Any:
        values = _values(V.graph.current_node.args[0])
        region = REGIONS[number]
        return output_of(extern("region", region.route, (region,), (None, None)), inputs_of(tensors, values))

    register_lowering(OPS.region.default, type_promotion_kind=None)(lower_region)
    for op, kind in _OURS.items():

        def lower(*args: Any, kind: str = kind, op: Any = op) -> Any:
            values, result = _values(V.graph.current_node.args), V.graph.current_node.meta["val"]
            product = values
            if kind == "two_scales_mm":
                a, b, one, other, fast = values
                product = (a, b, one * other, fast)
                if not all(map(_is_input, args[2:4])):
                    op, kind, values = OPS.scaled_mm.default, "scaled_mm", product
                    args = (*args[:2], lowerings[_ATEN.mul.Tensor](*args[2:4]), fast)
            of = "scaled_mm" if kind == "two_scales_mm" else kind
            route = _route(_routers[-1], of, product) if _routers and _in_python() else None
            if route is None or route.compiled is False or result.stride() != route.strides:
                return fallback_handler(op, add_to_fallback_set=False)(*args)
            rest = tuple(arg for arg in args if type(arg) is bool)
            inputs = inputs_of(args[: len(args) - len(rest)], values[: len(args) - len(rest)])
            first = 1 if kind == "addmm" else 0  # index of the first matrix
            views: list[View | None] = [None, None]
            for place in range(2):
                whole, value = _whole(inputs[first + place]), values[first + place]
                if whole is not None:
                    inputs[first + place] = whole
                    views[place] = ((*value.shape,), (*value.stride(),))
            return output_of(extern(kind, route, rest, (views[0], views[1])), inputs)

        register_lowering(op, type_promotion_kind=None)(lower)


def _whole(tensor: Any) -> Any:
    """The tensor of which another is a view from its first element on; None if it is not such a view.

    Kernels take addresses, so the view need not be created in each call.
    """
    from torch._inductor import ir

    while isinstance(tensor, ir.TensorBox):
        tensor = tensor.data
    if not isinstance(tensor, ir.ReinterpretView):
        return None
    whole, view = tensor.data, tensor.get_layout()
    starts_there = view.offset == 0 and whole.get_layout().offset == 0 and whole.get_dtype() == view.dtype
    return whole if starts_there and isinstance(whole, ir.StorageBox) else None


def _is_input(tensor: Any) -> bool:
    """Whether compiled code gets a tensor from its caller, rather than from an enclosing graph, such as that of a loop,
    whose tensors may be written unnoticed.
    """
    from torch._inductor import ir
    from torch._inductor.graph import SubgraphLowering
    from torch._inductor.virtualized import V

    while isinstance(tensor, (ir.TensorBox, ir.StorageBox)):
        tensor = tensor.data
    return type(tensor) in (ir.InputBuffer, ir.ConstantBuffer) and not isinstance(V.graph, SubgraphLowering)


def extern(kind: str, route: Route, rest: tuple[Any, ...], views: Views) -> Any:
    """An Inductor function for one route. `rest`: the arguments that are not tensors."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    key = (kind, route, rest, views)
    if key not in _externs:
        _externs[key] = ExternKernelChoice(call_of(kind, route, rest, views), name=f"deepgen_{kind}_{len(_externs)}")
    return _externs[key]


def call_of(kind: str, route: Route, rest: tuple[Any, ...], views: Views = (None, None)) -> Call:
    """The function that compiled code calls, with the tensors of our operator and `out`."""
    if kind == "region":
        alone = rest[0].alone

        def region(*tensors: Any, out: Any) -> None:
            if (not (route.captured or route.compiled) and route.idle) or route.run(tensors, out) is None:
                out.copy_(alone(*tensors))

        return region
    quick, torchs = route.quick(fitting=True, views=views), _TORCHS[kind]
    if not (route.captured or route.compiled):  # programs may capture compiled code
        quick = route.eager(quick)

    def two(a: Any, b: Any, *, out: Any) -> None:
        if quick(a, b, None, out) is None:
            torchs(*viewed(a, b, views), out=out)

    def biased(bias: Any, a: Any, b: Any, *, out: Any) -> None:
        if quick(a, b, bias, out) is None:
            torchs(bias, *viewed(a, b, views), out=out)

    def scaled(a: Any, b: Any, scale: Any, *, out: Any) -> None:
        if quick(a, b, scale, out) is None:
            torchs(*viewed(a, b, views), scale, *rest, out=out)

    kept = by_scales(route, quick, Factors())

    def two_scales(a: Any, b: Any, one: Any, other: Any, *, out: Any) -> None:
        if kept(a, b, one, other, out) is None:
            torchs(*viewed(a, b, views), one, other, *rest, out=out)

    calls: Mapping[str, Call] = {"addmm": biased, "scaled_mm": scaled, "two_scales_mm": two_scales}
    return calls.get(kind, two)


def costs(kind: str, route: Route, args: tuple[Any, ...]) -> str:
    """Why compiled code should call torch when it is not replayed; empty if a kernel pays off.

    This matters only on GPUs, where GPU work and CPU work overlap. It is decided as for eager code, but with the CPU
    times of compiled calls.
    """
    if route.raced is None or route.raced.calling is None:
        return ""
    if (kind, route) not in _paying:
        with torch.no_grad(), _disable_current_modes():
            raced = replace(route.raced, calling=_timed(kind, route, args))
        _paying[kind, route] = "" if raced.called else f"compiled: {raced}"
    return _paying[kind, route]


def _timed(kind: str, route: Route, args: tuple[Any, ...]) -> tuple[float, float]:
    """CPU seconds of a call from compiled code, ours and torch's, including memory allocation."""
    real = made_real(args)
    rest = tuple(arg for arg in args if not isinstance(arg, torch.Tensor))
    sets = cycle([[arg for arg in some if isinstance(arg, torch.Tensor)] for some in (real, elsewhere(real))])
    ours, torchs, make = call_of(kind, route, rest), _TORCHS[kind], route.make
    if kind == "scaled_mm":  # so that torch need not create its second scale each time
        one = torch.ones_like(real[2])
        torchs = lambda a, b, scale, fast, out: two_scales_mm(a, b, scale, one, fast, out=out)  # noqa: E731

    def mine() -> Any:
        out = make()
        ours(*next(sets), out=out)
        return out

    def other() -> Any:
        out = make()
        torchs(*next(sets), *rest, out=out)
        return out

    for _ in range(_WARM):
        mine(), other()
    return calling(mine, other)

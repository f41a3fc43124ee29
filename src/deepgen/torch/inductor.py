"""torch.compile: products of a compiled graph become deepgen's where a kernel is faster, without a break in the graph.

Traced functions call torch's own, so that every graph is the usual one. When Inductor gets it, with the shapes known,
single products are exchanged. Its generated code calls them as it calls torch's: by a function with `out=`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from deepgen.torch.calls import torch_scaled_mm
from deepgen.torch.ops import OPS, TORCHS, scaled_mm
from deepgen.torch.routes import LAUNCH, Route, Router

_ATEN = torch.ops.aten
_EXCHANGED = {
    _ATEN.mm.default: ("mm", OPS.mm.default),
    _ATEN.bmm.default: ("bmm", OPS.bmm.default),
    _ATEN.addmm.default: ("addmm", OPS.addmm.default),
}
_OURS = {**{ours: kind for kind, ours in _EXCHANGED.values()}, OPS.scaled_mm.default: "scaled_mm"}
# What torch does where a kernel cannot be called after all.
_INSTEAD: Mapping[str, Callable[..., Any]] = {**TORCHS, "scaled_mm": scaled_mm}
_routers: list[Router] = []  # the one in use
_externs: dict[Route, Any] = {}


def loaded() -> bool:
    """Whether torch's compiler was imported. That takes seconds, so it is left until something is compiled."""
    return "torch._dynamo" in sys.modules


def load() -> None:
    """Import the compiler. It keeps torch's functions by their names: they must stand in their places meanwhile."""
    import torch._dynamo.trace_rules
    import torch._inductor.lowering

    torch._dynamo.trace_rules.get_torch_obj_rule_map()


def enter(router: Router) -> Callable[[], None]:
    """From now on, graphs are compiled with this router's kernels; gives what ends that."""
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
            """Compiled graphs are not kept for other processes: what is faster is decided in each."""

    return Exchange()


def exchange(graph: Any, router: Router) -> None:
    """Ours in place of torch's products, where a kernel is faster."""
    for node in [*graph.nodes]:
        if node.op != "call_function":
            continue
        if node.target in _EXCHANGED and not node.kwargs:
            kind, ours = _EXCHANGED[node.target]
            if _route(router, kind, node.args) is not None:
                node.target = ours
        elif node.target is _ATEN._scaled_mm.default:
            _exchange_scaled(graph, node, router)


def _exchange_scaled(graph: Any, node: Any, router: Router) -> None:
    """Torch has a factor for each matrix, ours one for the product: they are multiplied first, in a launch more."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    a, b, one, other = (given[name] for name in ("self", "mat2", "scale_a", "scale_b"))
    fast = bool(given.get("use_fast_accum", False))
    rest: dict[str, Any] = {name: given.get(name) for name in ("bias", "scale_result", "out_dtype")}
    in_a, in_b, in_one, in_other = (arg.meta["val"] for arg in (a, b, one, other))
    if in_other.dtype != torch.float32 or torch_scaled_mm(in_a, in_b, in_one, in_other, **rest) is None:
        return
    with graph.inserting_before(node):
        factor = graph.call_function(_ATEN.mul.Tensor, (one, other))
        factor.meta["val"] = in_one * in_other
        route = _route(router, "scaled_mm", (a, b, factor, fast))
        if route is None or route.gain < LAUNCH:
            graph.erase_node(factor)
            return
        ours = graph.call_function(OPS.scaled_mm.default, (a, b, factor, fast))
    ours.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(ours)
    graph.erase_node(node)


def _route(router: Router, kind: str, args: Sequence[Any]) -> Route | None:
    """The kernel for a product of a graph, by its tensors as they were traced."""
    values = tuple(arg if type(arg) is bool else arg.meta["val"] for arg in args)
    return router.route(kind, values, _scaled_mm() if kind == "scaled_mm" else TORCHS[kind])


def _scaled_mm() -> Callable[..., Any]:
    """torch's, for the race: with a second factor that is made once."""
    ones: list[Any] = []

    def run(a: Any, b: Any, scale: Any, fast: bool) -> Any:
        if not ones:
            ones.append(torch.ones_like(scale))
        return TORCHS["scaled_mm"](a, b, scale, ones[0], out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


def _register() -> None:
    """Tell Inductor, once, how deepgen's operators are called."""
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings, register_lowering
    from torch._inductor.virtualized import V

    if OPS.mm.default in lowerings:
        return
    for op, kind in _OURS.items():

        def lower(*args: Any, kind: str = kind, op: Any = op) -> Any:
            node = V.graph.current_node
            route = _route(_routers[-1], kind, node.args) if _routers else None
            if route is None:
                return fallback_handler(op, add_to_fallback_set=False)(*args)
            rest = tuple(arg for arg in args if type(arg) is bool)
            given = [
                ir.ExternKernel.require_exact_strides(ir.ExternKernel.realize_input(tensor), arg.meta["val"].stride())
                for tensor, arg in zip(args, node.args, strict=True)
                if type(tensor) is not bool
            ]
            made = node.meta["val"]
            layout = ir.FixedLayout(made.device, made.dtype, [*made.shape], [*made.stride()])
            found = _extern(kind, route, rest).bind(given, layout).output_node()
            return found[0] if isinstance(found, tuple) else found

        register_lowering(op, type_promotion_kind=None)(lower)


def _extern(kind: str, route: Route, rest: tuple[Any, ...]) -> Any:
    """A function of Inductor's for one route: its code calls that without looking anything up."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    if route not in _externs:
        torchs, quick = _INSTEAD[kind], route.quick()

        def run(*tensors: Any, out: Any) -> None:
            if route.run((*tensors, *rest), out) is None:
                out.copy_(torchs(*tensors, *rest))

        def run_two(a: Any, b: Any, *, out: Any) -> None:
            if quick(a, b, out=out) is None:
                out.copy_(torchs(a, b))

        made = run_two if kind in ("mm", "bmm") else run
        _externs[route] = ExternKernelChoice(made, name=f"deepgen_{kind}_{len(_externs)}")
    return _externs[route]

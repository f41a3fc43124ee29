"""torch.compile: products of a compiled graph become deepgen's where a kernel is faster, without a break in the graph.

Traced functions call torch's own, so that every graph is the usual one. When Inductor gets it, with the shapes known,
single products are exchanged. Its generated code calls them as it calls torch's: by a function with `out=`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from deepgen.torch.ops import OPS, TORCHS
from deepgen.torch.routes import Route, Router

_ATEN = torch.ops.aten
_EXCHANGED = {
    _ATEN.mm.default: ("mm", OPS.mm.default),
    _ATEN.bmm.default: ("bmm", OPS.bmm.default),
    _ATEN.addmm.default: ("addmm", OPS.addmm.default),
}
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
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _EXCHANGED and not node.kwargs:
            kind, ours = _EXCHANGED[node.target]
            if _route(router, kind, node) is not None:
                node.target = ours


def _route(router: Router, kind: str, node: Any) -> Route | None:
    """The kernel for a product of a graph, by its tensors as they were traced."""
    return router.route(kind, tuple(arg.meta["val"] for arg in node.args), TORCHS[kind])


def _register() -> None:
    """Tell Inductor, once, how deepgen's operators are called."""
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings, register_lowering
    from torch._inductor.virtualized import V

    if OPS.mm.default in lowerings:
        return
    for kind, op in _EXCHANGED.values():

        def lower(*tensors: Any, kind: str = kind, op: Any = op) -> Any:
            node = V.graph.current_node
            route = _route(_routers[-1], kind, node) if _routers else None
            if route is None:
                return fallback_handler(op, add_to_fallback_set=False)(*tensors)
            given = [
                ir.ExternKernel.require_exact_strides(ir.ExternKernel.realize_input(tensor), arg.meta["val"].stride())
                for tensor, arg in zip(tensors, node.args, strict=True)
            ]
            made = node.meta["val"]
            layout = ir.FixedLayout(made.device, made.dtype, [*made.shape], [*made.stride()])
            found = _extern(kind, route).bind(given, layout).output_node()
            return found[0] if isinstance(found, tuple) else found

        register_lowering(op, type_promotion_kind=None)(lower)


def _extern(kind: str, route: Route) -> Any:
    """A function of Inductor's for one route: its code calls that without looking anything up."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    if route not in _externs:
        torchs, quick = TORCHS[kind], route.quick()

        def run(*args: Any, out: Any) -> None:
            if route.run(args, out) is None:
                torchs(*args, out=out)

        def run_two(a: Any, b: Any, *, out: Any) -> None:
            if quick(a, b, out) is None:
                torchs(a, b, out=out)

        made = run if kind == "addmm" else run_two
        _externs[route] = ExternKernelChoice(made, name=f"deepgen_{kind}_{len(_externs)}")
    return _externs[route]

"""torch.compile: products of a compiled graph become deepgen's where a kernel is faster, without a break in the graph.

Traced functions call torch's own, so that every graph is the usual one. When Inductor gets it, with the shapes known,
single products are exchanged. Its generated code then calls them as it calls torch's: by a function with `out=`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from deepgen.torch.ops import OPS, TORCHS, serving
from deepgen.torch.routes import Router

_ATEN = torch.ops.aten
_EXCHANGED = {
    _ATEN.mm.default: ("mm", OPS.mm.default),
    _ATEN.bmm.default: ("bmm", OPS.bmm.default),
    _ATEN.addmm.default: ("addmm", OPS.addmm.default),
}


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

    def leave() -> None:
        config.post_grad_custom_pre_pass = before

    return leave


def _pass(router: Router, before: Any) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Exchange(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            if before is not None:
                before(graph)
            if exchange(graph, router):
                _register()

        def uuid(self) -> None:
            """Compiled graphs are not kept for other processes: what is faster is decided in each."""

    return Exchange()


def exchange(graph: Any, router: Router) -> int:
    """How many products of a graph were exchanged."""
    count = 0
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _EXCHANGED or node.kwargs:
            continue
        kind, ours = _EXCHANGED[node.target]
        given = tuple(arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args)
        if router.route(kind, given, TORCHS[kind]) is not None:
            node.target = ours
            count += 1
    return count


def _register() -> None:
    """Tell Inductor, once, how deepgen's operators are called."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, register_lowering
    from torch._inductor.select_algorithm import ExternKernelChoice
    from torch._inductor.virtualized import V

    if OPS.mm.default in lowerings:
        return
    for kind, op in _EXCHANGED.values():
        choice = ExternKernelChoice(_into(kind), name=f"deepgen_{kind}", op_overload=op)

        def lower(*tensors: Any, choice: Any = choice) -> Any:
            node = V.graph.current_node
            steps = [arg.meta["val"].stride() for arg in node.args]
            given = [
                ir.ExternKernel.require_exact_strides(ir.ExternKernel.realize_input(tensor), step)
                for tensor, step in zip(tensors, steps, strict=True)
            ]
            made = node.meta["val"]
            layout = ir.FixedLayout(made.device, made.dtype, [*made.shape], [*made.stride()])
            found = choice.bind(given, layout).output_node()
            return found[0] if isinstance(found, tuple) else found

        register_lowering(op, type_promotion_kind=None)(lower)


def _into(kind: str) -> Any:
    def run(*args: Any, out: Any) -> Any:
        return serving(kind)(*args, out=out)

    run.__name__ = f"deepgen_{kind}"
    return run

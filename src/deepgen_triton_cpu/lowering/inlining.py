"""Functions that Triton was told not to inline, inlined: in C there is one function for a program."""

from __future__ import annotations

from collections.abc import Mapping

from deepgen.vocabulary import BadInput
from deepgen_triton_cpu.lowering.ir import Block, Function, Op, Region, Value, walk


def inline_calls(function: Function, others: Mapping[str, Function]) -> None:
    while calls := [op for op in walk(function.body) if op.name == "tt.call"]:
        for call in calls:
            _inline(function, call, others)


def _inline(function: Function, call: Op, others: Mapping[str, Function]) -> None:
    name = call.attributes.get("callee", "").lstrip("@")
    if name not in others or len(others[name].body.blocks) != 1:
        what = f"tt.call of {name}, which returns from several places"
        raise BadInput(what, where=call.location, allowed="a function that Triton inlines, or one with a single return")
    block = call.block
    assert block is not None
    known: dict[Value, Value] = dict(zip(others[name].args, call.operands, strict=True))
    *ops, last = others[name].body.block.ops
    at = block.ops.index(call)
    block.ops[at : at + 1] = [_copied(op, block, known) for op in ops]
    returned = {old: known.get(new, new) for old, new in zip(call.results, last.operands, strict=True)}
    for op in walk(function.body):
        op.operands = [returned.get(value, value) for value in op.operands]


def _copied(op: Op, block: Block, known: dict[Value, Value]) -> Op:
    operands = [known.get(value, value) for value in op.operands]
    made = Op(op.name, operands, [], op.attributes, [], op.successors, op.location, block)
    for place, value in enumerate(op.results):
        known[value] = Value(value.type, made, block, place)
        made.results.append(known[value])
    for region in op.regions:
        copy = Region(op=made)
        made.regions.append(copy)
        for inner in region.blocks:
            new = Block(inner.label, region=copy)
            copy.blocks.append(new)
            for place, value in enumerate(inner.args):
                known[value] = Value(value.type, None, new, place)
                new.args.append(known[value])
            new.ops = [_copied(one, new, known) for one in inner.ops]
    return made

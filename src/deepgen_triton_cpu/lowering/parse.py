"""Reads Triton's IR in the generic form of MLIR, with the places in the source."""

from __future__ import annotations

import re

from deepgen.extend import DeepgenError
from deepgen_triton_cpu.lowering.ir import Block, Function, Op, Region, Type, Value

_SPACE = re.compile(r"(?:\s+|//[^\n]*)+")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LABEL = re.compile(r"\^[\w$.-]+")
_KEY = re.compile(r'[\w$.-]+|"[^"]*"')
_ALIAS = re.compile(r"^#([\w]+) = loc\((.*)\)$", re.M)
_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$")
_POINTER = re.compile(r'!tt\.ptr<(.*?)(?:, (?:\d+|"\w+"))*>$')
_OPEN, _CLOSE = "([{<", ")]}>"


def parse(text: str) -> tuple[Function, dict[str, Function]]:
    """The kernel of a module, and the functions that it calls, by name."""
    others: dict[str, Function] = {}
    kernels: list[Function] = []
    for op in _Parser(text).module():
        function = Function(op.attributes["sym_name"].strip('"'), op.regions[0])
        if op.attributes.get("sym_visibility") == '"public"':
            kernels.append(function)
        else:
            others[function.name] = function
    if len(kernels) != 1:
        raise DeepgenError(f"Triton's IR has {len(kernels)} kernels, but one was expected")
    return kernels[0], others


def type_of(text: str) -> Type:
    """`tensor<64x32x!tt.ptr<f16>>` and the like."""
    tensor = _TENSOR.match(text)
    if tensor:
        shape = tuple(int(n) for n in tensor[1].split("x") if n)
        return Type(type_of(tensor[2]).element, shape, tensor=True)
    pointer = _POINTER.match(text)
    return Type("*" + type_of(pointer[1]).element) if pointer else Type(text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._aliases = dict(_ALIAS.findall(text))
        self._values: dict[str, Value] = {}
        self._types: dict[str, Type] = {}

    def module(self) -> list[Op]:
        self._at = self._text.index('"builtin.module"')
        return self._op(Block("")).regions[0].block.ops

    def _op(self, block: Block) -> Op:
        names = self._result_names()
        op = Op(self._match(_STRING)[1], [], block=block)
        op.operands = [self._values[name] for name in self._operands()]
        if self._take("["):
            op.successors = self._labels()
        if self._take("<{"):
            op.attributes.update(self._attributes("}>"))
        if self._take("("):
            while not self._take(")"):
                op.regions.append(self._region(op))
                self._take(",")
        if self._take("{"):
            op.attributes.update(self._attributes("}"))
        self._want(":")
        self._raw("-")  # the operands' types are known
        self._want("->")
        types = self._result_types()
        for place, (name, of) in enumerate(zip(names, types, strict=False)):
            value = Value(of, op, block, place)
            self._values[name] = value
            op.results.append(value)
        op.location = self._location()
        return op

    def _result_names(self) -> list[str]:
        names: list[str] = []
        while self._peek("%"):
            name, count = self._match(_RESULT).groups()
            names += [name] if count is None else [f"{name}#{n}" for n in range(int(count))]
            self._take(",")
        if names:
            self._want("=")
        return names

    def _operands(self) -> list[str]:
        self._want("(")
        names: list[str] = []
        while not self._take(")"):
            names.append(self._match(_VALUE)[0])
            self._take(",")
        return names

    def _labels(self) -> list[str]:
        labels: list[str] = []
        while not self._take("]"):
            labels.append(self._match(_LABEL)[0])
            self._take(",")
        return labels

    def _attributes(self, end: str) -> dict[str, str]:
        attributes: dict[str, str] = {}
        while not self._take(end):
            key = self._match(_KEY)[0].strip('"')
            attributes[key] = self._raw(",}").strip() if self._take("=") else "unit"
            self._take(",")
        return attributes

    def _region(self, op: Op) -> Region:
        region = Region(op=op)
        self._want("{")
        if not self._peek("^") and not self._peek("}"):  # an `else` that is not there has no block
            region.blocks.append(Block("", region=region))
        while not self._take("}"):
            if self._peek("^"):
                region.blocks.append(self._block(region))
            else:
                block = region.blocks[-1]
                block.ops.append(self._op(block))
        return region

    def _block(self, region: Region) -> Block:
        block = Block(self._match(_LABEL)[0], region=region)
        if self._take("("):
            while not self._take(")"):
                name = self._match(_VALUE)[0]
                self._want(":")
                value = Value(self._type(), None, block, len(block.args))
                self._location()
                self._values[name] = value
                block.args.append(value)
                self._take(",")
        self._want(":")
        return block

    def _result_types(self) -> list[Type]:
        if not self._take("("):
            return [self._type()]
        types: list[Type] = []
        while not self._take(")"):
            types.append(self._type())
            self._take(",")
        return types

    def _type(self) -> Type:
        text = self._raw(",) \n").strip()
        if text not in self._types:
            self._types[text] = type_of(text)
        return self._types[text]

    def _location(self) -> str:
        """The line of the user's file that an operation is from; Triton's own library is no place to look."""
        if not self._take("loc("):
            return ""
        text = self._raw(")")
        self._want(")")
        places = _PLACE.findall(self._resolved(text))
        own = [place for place in places if "/triton/" not in place[0]]
        file, line = (own or places or [("", "")])[0]
        return f"{file}:{line}" if file else ""

    def _resolved(self, text: str) -> str:
        for _ in range(20):
            if "#" not in text:
                break
            text = re.sub(r"#(\w+)", lambda m: self._aliases.get(m[1], ""), text)
        return text

    def _raw(self, stops: str) -> str:
        """The text up to one of these characters that is in no brackets."""
        self._skip()
        start, depth, text = self._at, 0, self._text
        while True:
            char = text[self._at]
            if char == '"':
                self._at = self._match(_STRING).end()
                continue
            if text.startswith("->", self._at):
                if depth == 0 and "-" in stops:
                    break
                self._at += 2
                continue
            if depth == 0 and char in stops and char != "-":
                break
            depth += (char in _OPEN) - (char in _CLOSE)
            self._at += 1
        return text[start : self._at]

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        if space:
            self._at = space.end()

    def _peek(self, text: str) -> bool:
        self._skip()
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        next_is = self._peek(text)
        if next_is:
            self._at += len(text)
        return next_is

    def _want(self, text: str) -> None:
        if not self._take(text):
            raise DeepgenError(f"Triton's IR has {self._text[self._at : self._at + 40]!r} where {text!r} was expected")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self._skip()
        match = pattern.match(self._text, self._at)
        if match is None:
            raise DeepgenError(f"Triton's IR has {self._text[self._at : self._at + 40]!r}, which is not supported")
        self._at = match.end()
        return match

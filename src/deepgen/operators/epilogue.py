"""The epilogue of a GEMM as a text: `gelu(x + bias[n])`, where x is an element of alpha * A B.

An operand is written with its index: `bias[n]` has a number for each column, `scale[m]` for each row, `residual[m, n]`
for each element, `s[0]` is one number. The text is read into a small tree, which has one meaning everywhere: elements
of an expression (`built`), from which references and general kernels follow, and C (`kernels/shared/epilogue.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.expr.elements import Element
    from deepgen.operators.gemm import Gemm

# Arguments of each function, which all targets compute in f32.
FUNCTIONS = {"gelu": 1, "gelu_tanh": 1, "relu": 1, "silu": 1, "tanh": 1, "sigmoid": 1, "exp": 1, "abs": 1, "max": 2,
             "min": 2, "clamp": 3}  # fmt: skip
FORMATS = ("f32", "bf16", "f16")  # that an operand may have: `f32(bias[n])`
KINDS = {"n": "a number for each column", "m": "one for each row", "mn": "one for each element", "0": "one number"}
RESULTS = ("f32", "bf16", "f16", "f8e4m3")
PAIRS = ("none", "joined", "two")  # where the second B is
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_WORDS = "+, -, *, /, numbers, x, operands such as bias[n], and " + ", ".join(FUNCTIONS)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}")
_RESERVED = {
    "x",
    "y",
    "b2",
    "a",
    "b",
    "c",
    "m",
    "n",
    "k",
    "alpha",
    "beta",
    "batch",
    "lda",
    "ldb",
    "ldc",
    *FUNCTIONS,
    *FORMATS,
}
_LONGEST, _MOST_OPERANDS, _DEEPEST = 400, 6, 24


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Sum:
    """An element of the product."""


@dataclass(frozen=True)
class SecondSum:
    """`y`: an element of the product of A and the second B."""


@dataclass(frozen=True)
class EpilogueOperand:
    name: str
    kind: str  # one of KINDS
    format: str = ""  # as the text states it


@dataclass(frozen=True)
class Apply:
    """A function, + - * /, or neg."""

    name: str
    parts: tuple[Tree, ...]


Tree: TypeAlias = "Number | Sum | SecondSum | EpilogueOperand | Apply"


@lru_cache(maxsize=512)
def parse(text: str) -> Tree:
    """Raises BadInput, with the place in the text."""
    if len(text) > _LONGEST:
        raise BadInput(f"gemm: an epilogue of {len(text)} characters", allowed=f"at most {_LONGEST}")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        place = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        raise BadInput(f"gemm: epilogue {text!r} cannot be read{place}", allowed=_WORDS) from None
    tree = _TextReader(text).tree(body, 0)
    nodes = [*walk(tree)]
    if not any(isinstance(node, Sum) for node in nodes):
        raise BadInput(f"gemm: epilogue {text!r} has no x", allowed="x, an element of the product, at least once")
    named: dict[str, EpilogueOperand] = {}
    for node in nodes:
        if isinstance(node, EpilogueOperand) and named.setdefault(node.name, node) != node:
            why = f"gemm: epilogue {text!r}: {node.name} is read in two ways"
            raise BadInput(why, allowed="one index and one format for each operand")
    if len(named) > _MOST_OPERANDS:
        raise BadInput(f"gemm: epilogue {text!r} has {len(named)} operands", allowed=f"at most {_MOST_OPERANDS}")
    return tree


class _TextReader:
    def __init__(self, text: str) -> None:
        self.text = text

    def wrong(self, node: ast.AST, why: str, allowed: str = _WORDS) -> NoReturn:
        part = ast.get_source_segment(self.text.strip(), node) or self.text
        raise BadInput(f"gemm: epilogue {self.text!r}: {part!r} {why}", allowed=allowed)

    def tree(self, node: ast.expr, depth: int) -> Tree:
        if depth > _DEEPEST:
            self.wrong(node, "is nested too deeply", f"at most {_DEEPEST} levels")
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Name):
            if node.id == "y":
                return SecondSum()
            if node.id != "x":
                self.wrong(node, "has no index", f"x, y, or an operand with its index, such as {node.id}[n]")
            return Sum()
        if isinstance(node, ast.Subscript):
            return self._operand(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = self.tree(node.operand, depth + 1)
            if isinstance(node.op, ast.UAdd):
                return inner
            return Number(-inner.value) if isinstance(inner, Number) else Apply("neg", (inner,))
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            left, right = self.tree(node.left, depth + 1), self.tree(node.right, depth + 1)
            return self._combined(node, _SIGNS[type(node.op)], left, right)
        if not isinstance(node, ast.Call):
            self.wrong(node, "is not part of an epilogue")
        return self._call(node, depth)

    def _number(self, node: ast.Constant) -> Number:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            self.wrong(node, "is not a number")
        try:
            value = float(node.value)
        except OverflowError:
            value = float("inf")
        if not abs(value) < 3e38:
            self.wrong(node, "is too large", "numbers that f32 has")
        return Number(value)

    def _operand(self, node: ast.Subscript) -> EpilogueOperand:
        if not isinstance(node.value, ast.Name):
            self.wrong(node, "is not an operand", "a name and its index, such as bias[n]")
        name, index = node.value.id, node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        kind = "".join(str(part.id if isinstance(part, ast.Name) else getattr(part, "value", "?")) for part in parts)
        if kind not in KINDS or (kind == "0" and len(parts) > 1):
            shapes = ", ".join(f"{name}[{', '.join(one)}] ({words})" for one, words in KINDS.items())
            self.wrong(node, "has another index than an operand may have", shapes)
        if name in _RESERVED or name.startswith("stride_") or not _NAME.fullmatch(name):
            self.wrong(node, "is named as something else is", "a name of small letters, such as bias or residual")
        return EpilogueOperand(name, kind)

    def _combined(self, node: ast.BinOp, sign: str, left: Tree, right: Tree) -> Tree:
        if not (isinstance(left, Number) and isinstance(right, Number)):
            return Apply(sign, (left, right))
        a, b = left.value, right.value
        if sign == "/" and b == 0.0:
            self.wrong(node, "divides by zero")
        value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
        if not (isfinite(value) and abs(value) < 3e38):
            self.wrong(node, "is too large", "numbers that f32 has")
        return Number(value)

    def _call(self, node: ast.Call, depth: int) -> Tree:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in FORMATS:
            inner = self.tree(node.args[0], depth + 1) if len(node.args) == 1 else None
            if not isinstance(inner, EpilogueOperand):
                self.wrong(node, "is not an operand's format", f"an operand, such as {name}(bias[n])")
            return EpilogueOperand(inner.name, inner.kind, name)
        if name not in FUNCTIONS:
            self.wrong(node, "is no function of an epilogue", ", ".join(FUNCTIONS))
        if len(node.args) != FUNCTIONS[name] or node.keywords:
            self.wrong(node, f"has {len(node.args)} arguments", f"{FUNCTIONS[name]} for {name}")
        parts = tuple(self.tree(one, depth + 1) for one in node.args)
        if all(isinstance(part, Number) for part in parts):
            self.wrong(node, "is a function of numbers alone", "the number itself")
        return Apply(name, parts)


def walk(tree: Tree) -> Iterator[Tree]:
    if isinstance(tree, Apply):
        for part in tree.parts:
            yield from walk(part)
    yield tree


def operands(text: str) -> tuple[EpilogueOperand, ...]:
    """In the order in which the text names them."""
    if not text:
        return ()
    return tuple(dict.fromkeys(node for node in walk(parse(text)) if isinstance(node, EpilogueOperand)))


def canonical(text: str) -> str:
    """The one spelling of a text."""
    return shown(parse(text))


def shown(tree: Tree) -> str:
    if isinstance(tree, Number):
        return f"{tree.value:g}" if float(f"{tree.value:g}") == tree.value else repr(tree.value)
    if isinstance(tree, (Sum, SecondSum)):
        return "x" if isinstance(tree, Sum) else "y"
    if isinstance(tree, EpilogueOperand):
        one = f"{tree.name}[{', '.join(tree.kind)}]"
        return f"{tree.format}({one})" if tree.format else one
    parts = [shown(part) for part in tree.parts]
    if tree.name == "neg":
        return f"-{_grouped(tree.parts[0], parts[0], tight=True)}"
    if tree.name not in _SIGNS.values():
        return f"{tree.name}({', '.join(parts)})"
    left = _grouped(tree.parts[0], parts[0], tight=tree.name in "*/")
    # Sums and products of floats are not associative: what was grouped on the right stays so.
    right = _grouped(tree.parts[1], parts[1], tight=tree.name in "*/", right=True)
    return f"{left} {tree.name} {right}"


def _grouped(tree: Tree, text: str, *, tight: bool, right: bool = False) -> str:
    loose = isinstance(tree, Apply) and tree.name in "+-"
    close = isinstance(tree, Apply) and tree.name in ("*", "/", "neg")
    negative = isinstance(tree, Number) and tree.value < 0.0
    return f"({text})" if negative or (loose and (tight or right)) or (close and right and tight) else text


def format_of(operand: EpilogueOperand, a: str, c: str) -> str:
    """An operand's dtype: what the text states; f32 for a single number and for scales; otherwise C's, or where C has 8
    bits, A's if it has more, else bf16."""
    if operand.format:
        return operand.format
    if operand.kind == "0" or operand.name.startswith("scale"):
        return "f32"
    return c if c in FORMATS else a if a in ("bf16", "f16") else "bf16"


def has_second(text: str) -> bool:
    """Whether it has y, an element of a second product."""
    return bool(text) and any(isinstance(node, SecondSum) for node in walk(parse(text)))


def built(
    tree: Tree, x: Element, read: Callable[[EpilogueOperand], Element], second: Callable[[], Element] | None = None
) -> Element:
    """The text as an element of an expression."""
    from deepgen.operators.expr.builder import exp, maximum, minimum
    from deepgen.operators.named import ACTIVATIONS

    def of(node: Tree) -> Element | float:
        if isinstance(node, Number):
            return node.value
        if isinstance(node, Sum):
            return x
        if isinstance(node, SecondSum):
            assert second is not None, "a pair has a second product"
            return second()
        if isinstance(node, EpilogueOperand):
            return read(node)
        a, *rest = (of(part) for part in node.parts)
        if node.name in ACTIVATIONS:
            assert not isinstance(a, float), "functions of numbers alone are refused"
            return ACTIVATIONS[node.name](a)
        simple: Mapping[str, Callable[..., Element]] = {
            "+": lambda a, b: a + b,
            "-": lambda a, b: a - b,
            "*": lambda a, b: a * b,
            "/": lambda a, b: a / b,
            "neg": lambda a: -a,
            "abs": abs,
            "exp": exp,
            "max": maximum,
            "min": minimum,
            "clamp": lambda a, low, high: minimum(maximum(a, low), high),
        }
        return simple[node.name](a, *rest)

    whole = of(tree)
    assert not isinstance(whole, float), "a text has x"
    return whole


# What GEMM's own words stand for. Both spellings are one operator: a text that says no more becomes the words.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu_tanh", "silu": "silu"}
_SCALES = {"tensor": "0", "row": "m", "column": "n"}


def text_of_words(bias: bool, activation: str, scales: str) -> str:
    """The text of a GEMM's bias, activation and scales; "x" if it has none."""
    text = "x" if scales == "none" else f"x * scale[{_SCALES[scales]}]"
    text = f"{text} + bias[n]" if bias else text
    return text if activation == "none" else f"{_ACTIVATIONS[activation]}({text})"


@lru_cache(maxsize=1)
def _texts_of_words() -> dict[str, tuple[bool, str, str]]:
    every = [(b, a, s) for b in (False, True) for a in ("none", *_ACTIVATIONS) for s in ("none", *_SCALES)]
    return {text_of_words(*one): one for one in every}


def is_text(epilogue: object) -> bool:
    """Whether it is a text, rather than words such as bias,relu."""
    return isinstance(epilogue, str) and re.search(r"\bx\b|[(\[]", epilogue) is not None


def words_of_text(text: str) -> tuple[bool, str, str] | None:
    """Bias, activation and scales, if they say the same as a text."""
    return _texts_of_words().get(canonical(text))


def check(gemm: Gemm) -> None:
    """Raises BadInput unless a GEMM's text and its other words make sense together."""
    text, words = gemm.epilogue, (gemm.bias, gemm.activation != "none", gemm.scales != "none", gemm.beta != 0.0)
    if text and (not isinstance(text, str) or text != canonical(text)):
        raise BadInput(f"gemm: epilogue {text!r}", allowed="its one spelling, which dg.gemm gives it")
    if text and any(words):
        both = [name for name, there in zip(("bias", "activation", "scales", "beta"), words, strict=True) if there]
        what = f"gemm: epilogue {text!r} beside {' and '.join(both)}"
        raise BadInput(what, allowed="all of it in the formula, such as relu(x * scale[m] + bias[n] + c0[m, n])")
    if text and (gemm.c not in RESULTS or gemm.acc not in ("f32", "i32")):
        what = f"gemm: epilogue {text!r} with {gemm.acc} sums and a result in {gemm.c}"
        raise BadInput(what, allowed="f32 or i32 sums, and a result in " + ", ".join(RESULTS))
    pair = gemm.pair != "none"
    if gemm.pair not in PAIRS or pair != has_second(text):
        what = f"gemm: pair {gemm.pair!r} with epilogue {text or 'none'!r}"
        raise BadInput(what, allowed="joined or two where the epilogue has y, such as silu(x) * y; else none")
    if pair and (gemm.batch > 1 or gemm.acc != "f32"):
        what = f"gemm: a pair of products in a batch of {gemm.batch}, with {gemm.acc} sums"
        raise BadInput(what, allowed="single matrices with f32 sums")

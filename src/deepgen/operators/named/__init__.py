"""Built-in operators defined by expressions. Each is a table of parameters and a function that builds the expression.

An epilogue is applied to a result before it is written: a bias, an activation, a residual.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt
from typing import Any, TypeVar

from deepgen.operators.base import Operator
from deepgen.operators.expr.builder import erf, expression, maximum, sigmoid, tanh, tensor
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import Expressed
from deepgen.operators.words import FORMATS, NONE, Word, listed, of_sides, plain, shown
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

Own = TypeVar("Own", bound="Named")


@dataclass(frozen=True)
class Result:
    """The position of an epilogue's element: its indices, the shape of the result, and the dimension along which a bias
    runs."""

    shape: tuple[int, ...]
    places: tuple[Position, ...]
    channel: int
    dtype: str


def _gelu(x: Element) -> Element:
    return x * 0.5 * (erf(x * sqrt(0.5)) + 1.0)


def _gelu_tanh(x: Element) -> Element:
    return x * 0.5 * (tanh((x + x * x * x * 0.044715) * sqrt(2.0 / pi)) + 1.0)


ACTIVATIONS: dict[str, Callable[[Element], Element]] = {
    "relu": lambda x: maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "tanh": tanh,
    "sigmoid": sigmoid,
}
_TENSORS = ("scale", "bias", "residual")  # the first two have one number per channel: a folded normalisation
STEPS = (*_TENSORS, *ACTIVATIONS)


def applied(value: Element, text: str, result: Result) -> Element:
    """A value after the steps of an epilogue, in order: `bias,relu`."""
    steps = [] if text == NONE else text.split(",")
    for place, step in enumerate(steps):
        if step not in STEPS:
            raise BadInput(f"epilogue={text}: unknown step {step!r}", allowed="one of " + ", ".join(STEPS))
        if step in steps[:place] and step in _TENSORS:
            raise BadInput(f"epilogue={text}: {step} is given twice", allowed="once")
        if step in ("scale", "bias"):
            if step == "scale" and result.dtype == "i32":
                raise BadInput(f"epilogue={text} of integers", allowed="a scale of floats")
            along = tensor(step, (result.shape[result.channel],), result.dtype)
            one = along[result.places[result.channel]].cast(value.dtype)
            value = value + one if step == "bias" else value * one
        elif step == "residual":
            value = value + tensor("residual", result.shape, result.dtype)[result.places].cast(value.dtype)
        else:
            value = ACTIVATIONS[step](value)
    return value


FLOATS = tuple(name for name in FORMATS if name != "i8")
DTYPE = Word("dtype", "data type of the tensors; the result of i8 is i32", "choice", "f32", choices=(*FORMATS,))
FLOAT = Word("dtype", "data type of the tensors", "choice", "f32", choices=FLOATS)
EPILOGUE = Word("epilogue", f"operations on the result, such as bias,relu: {', '.join(STEPS)}", "choice",
                NONE)  # fmt: skip


@dataclass(frozen=True)
class Named(Expressed):
    """An operator defined by its words: every word with its value, in the order of `words`."""

    arguments: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        if [name for name, _ in self.arguments] != [word.name for word in self.words]:
            raise BadInput(
                f"{self.name} is given {', '.join(name for name, _ in self.arguments)}", allowed="all its words"
            )
        self.expression()

    def __getitem__(self, word: str) -> Any:
        return dict(self.arguments)[word]

    @abstractmethod
    def build(self) -> Operand:
        """The result of its expression. Raises BadInput if the words are inconsistent."""

    def expression(self) -> Expression:
        return _built(self)

    @property
    def formats(self) -> tuple[str, str, str]:
        """The formats of the inputs, of sums, and of the result."""
        return self["dtype"], *FORMATS[self["dtype"]]

    def finished(self, value: Element, result: Result) -> Element:
        """A sum with the epilogue, in the format of the result."""
        steps = self["epilogue"] if "epilogue" in dict(self.arguments) else NONE
        return applied(value, steps, result).cast(result.dtype)

    def sizes(self) -> Mapping[str, int]:
        each = (of_sides(word, self[word.name]) for word in self.words if word.kind == "size")
        return {name: size for sizes in each for name, size in sizes.items()}

    def describe(self) -> str:
        return " ".join([self.name, self._formats(), *(f"{n}={v}" for n, v in self._unusual())])

    def slug(self) -> str:
        texts = [f"{name}{value}".replace(",", "_") for name, value in self._unusual()]
        return "-".join([self.name, self._formats(), *texts])

    def _unusual(self) -> list[tuple[str, Any]]:
        """Needed words, and words that differ from their defaults."""
        unusual = {word.name for word in self.words if word.needed or self[word.name] != word.default}
        return [(name, shown(value)) for name, value in self.arguments if name in unusual and name != "dtype"]

    def parameters(self) -> Mapping[str, Any]:
        return dict(self.arguments)

    def to_json(self) -> JsonObject:
        usual = {word.name: word.default for word in self.words if word.later}
        kept = ((name, value) for name, value in self.arguments if name not in usual or value != usual[name])
        return {"name": self.name, **{name: [*value] if isinstance(value, tuple) else value for name, value in kept}}

    @classmethod
    def from_json(cls: type[Own], data: Mapping[str, Any]) -> Own:
        names = {word.name for word in cls.words}
        return cls.make({name: value for name, value in data.items() if name in names})

    @classmethod
    def make(cls: type[Own], parameters: Mapping[str, Any]) -> Own:
        words = {word.name: word for word in cls.words}
        meant = {alias: name for name, word in words.items() for alias in word.aliases if name not in parameters}
        parameters = {meant.get(name, name): value for name, value in parameters.items()}
        unknown = next((name for name in parameters if name not in words), None)
        if unknown is not None:
            raise BadInput(f"{cls.name} has no parameter {unknown!r}", allowed=", ".join(words))
        missing = [name for name, word in words.items() if word.needed and name not in parameters]
        if missing:
            raise BadInput(f"{cls.name} needs a value for {listed(missing)}", allowed=", ".join(words))
        every = ((name, plain(parameters.get(name, word.default))) for name, word in words.items())
        return cls(tuple((name, words[name].check(value)) for name, value in every))


@lru_cache(maxsize=256)
def _built(operator: Named) -> Expression:
    return expression(operator.build(), name=operator.name)


def operator(name: str, **words: Any) -> Operator:
    """An operator by its name and its words, as on the command line: dg.operator("bmm", B=12, M=512, N=64, K=512)."""
    from deepgen.operators import OPERATORS

    return OPERATORS.get(name).make(words)

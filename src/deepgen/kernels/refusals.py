"""What to say where no family serves: what would be served instead. Why each family refuses is told on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deepgen.kernels.base import Generator
from deepgen.operators import Operator, words_of
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput

_OF_EXPRESSIONS = "rules"  # the family that serves any of them
_LARGEST = 2**63 - 1  # bytes: what addresses and 64-bit indices can tell apart


def served_instead(operator: Operator, target: Target, families: Sequence[Generator]) -> str:
    """In words: other values of single words of the operator with which the target serves it."""
    if isinstance(operator, ExpressionOperator):  # it has no words
        return "; ".join(f"{f.name}: {f.refuses(operator, target)}" for f in families if f.name == _OF_EXPRESSIONS)
    offers = []
    for word in words_of(type(operator)).values():
        choices = [one for one in word.choices if _serves(operator, word.name, one, target, families)]
        if choices:
            offers.append(f"{word.name} {', '.join(choices)}")
    if not offers:
        return f"{target.name} serves no {operator.name} like this; see why: {_ask(operator, target)}"
    return f"served there: {'; or '.join(offers)}; see why: {_ask(operator, target)}"


def check_addressable(operator: Operator) -> None:
    """Refuse tensors that no memory can hold, before anyone computes with their sizes."""
    for tensor, size in _sizes(operator):
        if size > _LARGEST:
            what = f"{operator.describe()}: {tensor} takes {size:.3g} bytes"
            raise BadInput(what, allowed=f"at most {_LARGEST:.3g} bytes a tensor: no index reaches further")


def least_bytes(operator: Operator) -> int:
    """The memory that its tensors take, each once."""
    return sum(size for _, size in _sizes(operator))


def _sizes(operator: Operator) -> Iterator[tuple[str, int]]:
    for tensor in operator.tensors():
        size = tensor.dtype.bytes
        for length in tensor.shape:
            size *= length
        yield tensor.name, size


def _serves(operator: Operator, word: str, value: str, target: Target, families: Sequence[Generator]) -> bool:
    parameters = operator.parameters()
    if parameters.get(word) == value:
        return False
    try:
        other = type(operator).make({**parameters, word: value})
    except BadInput:
        return False
    return any(family.refuses(other, target) is None for family in families)


def _ask(operator: Operator, target: Target) -> str:
    words = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in _stated(operator)
    )
    return f"deepgen space {operator.name} {words} --target {target.name} --why"


def _stated(operator: Operator) -> list[tuple[str, object]]:
    return [(name, value) for name, value in operator.parameters().items() if value is not None]

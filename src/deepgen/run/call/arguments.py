"""The arguments of a call by the names that the operator's signature gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.operators import Operator, Param
from deepgen.operators.signature import INOUT, INPUT
from deepgen.vocabulary import BadInput, dtype


class Arguments:
    """What a call of an operator may be given, and how.

    By position: the tensors that are read, inputs before those that are written too. By name: any tensor, optional ones
    only so, and run-time scalars, whose defaults are the operator's. `out` is for tensors that are written.
    """

    def __init__(self, operator: Operator) -> None:
        self._signature, self._operator = operator.signature(), operator
        read = [p for role in (INPUT, INOUT) for p in self._signature.tensors if p.role == role]
        self.written = tuple(p.name for p in self._signature.outputs)
        # Addresses are listed in this order everywhere.
        self.order = tuple(dict.fromkeys((*(p.name for p in read), *self.written)))
        self._needed = tuple(p.name for p in read if not p.optional)
        self._values = dict(operator.values())

    def usage(self) -> str:
        """How a call is written: `kernel(A, B) -> C`."""
        return f"kernel({', '.join(self._needed)}) -> {', '.join(self.written)}"

    def sort(
        self, inputs: Sequence[Any], out: Any, named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, int | float]]:
        """The arrays and the scalars of a call, by name. Outputs that are to be made are left out."""
        if len(inputs) > len(self._needed):
            allowed = f"{', '.join(self._needed)}; others by name"
            raise BadInput(
                f"{self._operator.describe()} takes {len(self._needed)} arrays by position, not {len(inputs)}",
                allowed=allowed,
            )
        given = dict(zip(self._needed, inputs))  # noqa: B905  fewer may be given: the others by name
        values = dict(self._values)
        for name, value in named.items():
            if name in values:
                values[name] = self._number(self._signature[name], value)
            elif name not in self.order:
                raise BadInput(f"the kernel has no parameter {name}", allowed=self._allowed())
            elif name in given:
                raise BadInput(f"{name} is given twice", allowed="once, by position or by name")
            elif value is not None:
                given[name] = value
        for name, array in self._outputs(out, [n for n in self.written if n not in given]).items():
            given[name] = array
        for name in self._needed:
            if given.get(name) is None:
                how = "out=" if name in self.written else f"{name}="
                raise BadInput(f"{self._operator.describe()} needs {name}", allowed=f"pass it as {how}")
        if not given:
            raise BadInput(
                f"{self._operator.describe()} has no inputs, so it cannot tell which device to use", allowed="pass out="
            )
        return {name: given[name] for name in self.order if name in given}, values

    def result(self, arrays: Mapping[str, Any]) -> Any:
        """What a call returns: what is written, several as a tuple."""
        made = tuple(arrays[name] for name in self.written)
        return made[0] if len(made) == 1 else made

    def _outputs(self, out: Any, open_: Sequence[str]) -> dict[str, Any]:
        if out is None:
            return {}
        if isinstance(out, Mapping):
            for name in out:
                if name not in open_:
                    raise BadInput(f"out has {name!r}", allowed=", ".join(open_) or "nothing: all are given")
            return {name: array for name, array in out.items() if array is not None}
        if not isinstance(out, (tuple, list)) and len(open_) == 1:
            return {open_[0]: out}
        if not isinstance(out, (tuple, list)) or len(out) != len(open_):
            allowed = f"{', '.join(open_) or 'none'}: a tuple in this order, or a mapping"
            raise BadInput("out does not match the kernel's outputs", allowed=allowed)
        return {name: array for name, array in zip(open_, out, strict=True) if array is not None}

    def _number(self, param: Param, value: Any) -> int | float:
        wanted = int if dtype(self._signature.dtype_of(param)).integer else float
        try:
            number: int | float = wanted(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if isinstance(value, str) or number != value:
            kind = "a whole number" if wanted is int else "a number"
            raise BadInput(f"{param.name} is {value!r}", allowed=kind)
        return number

    def _allowed(self) -> str:
        return "one of " + ", ".join((*self.order, *self._values))

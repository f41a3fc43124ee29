"""Names for shell completion, and help. Registries are imported only when their names are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from deepgen.operators import Operator, Word


EVERY_FAMILY = "all"


def operators(incomplete: str) -> list[str]:
    """Completions of the first word of a command; the shell completes files itself."""
    from deepgen.operators import OPERATORS

    return _starting(incomplete, (name for name in OPERATORS.names() if name != "expression"))


def dtypes(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--dtype"]())


def strategies(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--strategy"]())


def families(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--family"]())


def baselines(incomplete: str) -> list[str]:
    return _starting(incomplete, NAMES["--baseline"]())


def targets(incomplete: str) -> list[str]:
    return _starting(incomplete, (f"{kind}:native" for kind in target_kinds()))


def target_kinds() -> tuple[str, ...]:
    from deepgen.targets import KINDS

    return ("cpu", *KINDS.names())


def _dtypes() -> Iterable[str]:
    from deepgen.vocabulary.dtypes import DTYPES

    return DTYPES


def _strategies() -> Iterable[str]:
    from deepgen.tuning.search import STRATEGIES

    return STRATEGIES.names()


def _families() -> Iterable[str]:
    from deepgen.generators import FAMILIES

    return (*FAMILIES.names(), EVERY_FAMILY)


def _baselines() -> Iterable[str]:
    from deepgen.baselines import BASELINES

    return BASELINES.names()


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--dtype": _dtypes,
    "--strategy": _strategies,
    "--family": _families,
    "--baseline": _baselines,
}


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


_ASKED = "deepgen.words"
# What a value is called in help, by typer's name of its type.
_VALUES = {"int": "NUMBER", "integer": "NUMBER", "float": "NUMBER", "str": "NAME", "text": "NAME", "path": "PATH"}


def with_plain_values(command: Any) -> Any:
    """The command, whose help writes `--trials NUMBER` and `at least 1` for typer's `<int range>` and `x>=1`."""
    for part in getattr(command, "commands", {}).values():
        with_plain_values(part)
    for one in command.params:
        kind = one.type
        if one.metavar is None:
            one.metavar = _VALUES.get(kind.name.removesuffix(" range"))
        if one.param_type_name == "argument" and one.metavar:  # without typer's braces
            one.get_usage_pieces = lambda ctx, metavar=one.metavar: [metavar]
        least, most = getattr(kind, "min", None), getattr(kind, "max", None)
        if least is not None:
            text = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
            kind._describe_range = lambda text=text: text
    return command


class OperatorCommand(TyperCommand):
    """A command whose help ends with the operators, or with the parameters of the one that stands before `--help`.

    Contexts and formatters are typer's, whose classes have moved between its versions.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ASKED] = tuple(args)  # `--help` stops parsing before arguments are available
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from deepgen.operators import OPERATORS

        asked = next((word for word in ctx.meta.get(_ASKED, ()) if word in OPERATORS), None)
        if asked is None:
            with formatter.section(f"Operators ({ctx.command_path} OPERATOR --help shows the parameters of one)"):
                own = [(name, _example(OPERATORS.get(name))) for name in named_operators()]
                # Packages are not imported just to list what they bring.
                others = OPERATORS.names()[len(OPERATORS.own) :]
                formatter.write_dl([*own, *((name, "of an installed package") for name in others)])
        else:
            _write(OPERATORS.get(asked), formatter)
        options = {name for parameter in self.params for name in parameter.opts}
        with formatter.section("Values of options"):
            formatter.write_dl([(o, text) for o, text in _values_of_options() if o in options])


def _values_of_options() -> Iterator[tuple[str, str]]:
    """The values of options that take names, including those of plug-ins."""
    for option, names in NAMES.items():
        yield option, ", ".join(names())
    yield "--target", f"KIND:native, or KIND:ARCH such as cuda:sm_90; a KIND is {', '.join(target_kinds())}"


def named_operators() -> tuple[str, ...]:
    """The built-in operators that have a name on the command line; an expression of a file has none."""
    from deepgen.operators import OPERATORS

    return tuple(name for name in OPERATORS.own if name != "expression")


def _example(operator: type[Operator]) -> str:
    from deepgen.operators import words_of
    from deepgen.operators.words import short_example

    return f"{operator.name} {short_example(words_of(operator).values())}".rstrip()


def _write(operator: type[Operator], formatter: Any) -> None:
    from deepgen.operators import words_of

    words = words_of(operator).values()
    example = _example(operator)
    fits = len(example) + len(operator.name) < 60  # in 80 columns, including the surrounding text
    with formatter.section(f"Operator {operator.name}, such as {example}" if fits else f"Operator {example}"):
        if words:
            formatter.write_dl([(", ".join((w.name, *w.aliases)), _meaning(w)) for w in words])


def _meaning(word: Word) -> str:
    choices = f" ({', '.join(word.choices)})" if word.choices and word.help else ""
    default = "" if word.default is None else f" [{str(word.default).lower() if word.kind == 'flag' else word.default}]"
    return f"{word.help or word.allowed()}{choices}{default}"

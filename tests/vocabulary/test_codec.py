"""JSON of dataclasses: every class that uses the codec round-trips unchanged; errors name the place."""

from __future__ import annotations

import importlib
import json
import random
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, Union

import pytest

import deepgen
from deepgen import targets
from deepgen.kernels.own.arguments import ScalarArgument, ScratchArgument, TensorArgument
from deepgen.kernels.own.description import Description, OwnLaunch
from deepgen.libraries.entry import DecidedKernel, Entry, ModelTimes, Rival, Timed, Times
from deepgen.operators import Param, Signature, Tolerance, softmax
from deepgen.run.measure.base import Helper, Policy, Task
from deepgen.tuning.bundles.results import TrialResult
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Measurement, Source, Step, TensorArg, Verdict, codec
from deepgen.vocabulary.codec import Malformed, Serializable, coded, from_json, to_json
from deepgen.vocabulary.finding import CodeRef, CodeSource

_SOFTMAX = softmax(4, 8)
_DECIDED = DecidedKernel(_SOFTMAX, "id", True)
_PARAMS = (
    Param("a", "input", "f32", ("n", 4), range=(0, "n"), align=16),
    Param("y", "output", "f32", ("n",), aliases=("a",)),
)
_RIVALS = [Rival(0.5), Rival(1e-6, 1.5, (1.25, 2.0))]
_TIMED = Timed(_SOFTMAX, 0.5, (0.25, 1.0), {"torch": _RIVALS[0]})
_ENTRY = Entry(
    targets.resolve("x86:avx2"), True, None, False, "c_softmax", {"threads": 4}, "id", "hash", (("n > 1", "n is big"),),
    (_TIMED,), 12.5, None, {"study": "s"},
)  # fmt: skip
_REFS = [CodeRef("name", "softmax"), CodeRef("file", "own.py:Own", "0" * 64)]
_SOURCES = [CodeSource(_REFS[0]), CodeSource(_REFS[1], Path("/a/own.py"))]
_ARGUMENTS = (
    TensorArgument("x", "input", ("n", 4), "f32", ("uniform", 0, 1), align=64),
    TensorArgument("y", "output", ("n",), "f32", checked=False),
    ScalarArgument("s", "f32", 0.5, (0.0, 1.0)),
    ScratchArgument("w", "4 * n", zeroed=True),
)
_KERNEL = Description(
    "own", "c", (Source("own.c", "text"),), _ARGUMENTS, {"n": 8}, {"b": (1, 2), "of": ((1, 2), (3, 4))},
    (OwnLaunch("run", ("n", 1, 1), arguments=("x",)),), default={"b": 1}, tolerance={"y": Tolerance(0.0, 0.5)},
    probes={"few": {}},
)  # fmt: skip
_POLICY = Policy(cold=False, threads=2, strict_floats=True)
_TASKS = [
    Task(_SOFTMAX, targets.resolve("x86:avx2")),
    Task(
        _SOFTMAX, targets.resolve("cuda:sm_90a"), 3, _POLICY, (_SOFTMAX,), (softmax(3, 8),), {"own": _SOURCES[1]},
        ("cycles",), (), (_SOFTMAX,),
    ),
]  # fmt: skip
# Example values of classes whose values cannot be generated from their field types alone.
EXAMPLES: dict[type, list[Any]] = {
    Param: [*_PARAMS],
    Signature: [Signature(_PARAMS), Signature(_PARAMS[:1], {"T": "f16"})],
    Rival: _RIVALS,
    Timed: [_TIMED],
    Entry: [_ENTRY],
    Times: [Times(_SOFTMAX, "cpu", True, 4, {"id": 0.5}, {"torch": 0.25}, ("torch",))],
    DecidedKernel: [_DECIDED],
    ModelTimes: [ModelTimes("digest", "eager", "cpu", 4, 0.5, 0.25, (_DECIDED,))],
    CodeRef: _REFS,
    CodeSource: _SOURCES,
    TensorArgument: [*_ARGUMENTS[:2]],
    Description: [_KERNEL],
    Policy: [Policy(), _POLICY],
    Task: _TASKS,
    Helper: [Helper(Kernel("k", "c", (), (), LaunchPlan(())), Path("/a/b"))],
    TrialResult: [TrialResult(3, "id", Measurement(Verdict.CORRECT, samples=(0.5,)), {"registers": 4})],
}


def _serializable() -> list[type]:
    root = Path(deepgen.__file__).parents[1]
    for path in root.glob("deepgen*/**/*.py"):
        if "vocabulary.codec import" in (text := path.read_text(encoding="utf-8")) or "Serializable" in text:
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
    todo, classes = [Serializable], {}
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            if cls.__module__.startswith("deepgen") and is_dataclass(cls):
                classes[cls.__qualname__] = cls
    return [classes[name] for name in sorted(classes)]


def _value(hint: Any, rng: random.Random) -> Any:
    """A random value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        inside = arguments[:1] * rng.randrange(4) if arguments[-1] is ... else arguments
        return tuple(_value(one, rng) for one in inside)
    if origin in (Mapping, dict):
        return {f"key {i}": _value(arguments[1], rng) for i in range(rng.randrange(4))}
    if hint in (Any, object) or "Json" in str(hint):
        return rng.choice([None, True, 1, 0.5, "text", [1, "a"], {"a": [1]}])
    if origin in (Union, types.UnionType):
        return _value(rng.choice(arguments), rng)
    if is_dataclass(hint):
        return _instance(hint, rng)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return rng.choice(list(hint))
    plain: dict[type, list[Any]] = {
        type(None): [None],
        bool: [False, True],
        int: [0, 1, -5, 1 << 70],
        float: [0.0, 0.1, -1e300, 5e-324],
        str: ["", "a", "\u00e9\n"],
        Path: [Path("/a/b")],
    }
    return rng.choice(plain[hint])


def _instance(cls: Any, rng: random.Random) -> Any:
    if cls in EXAMPLES:
        return rng.choice(EXAMPLES[cls])
    hints = typing.get_type_hints(cls)
    # What is not compared need not come back, such as passwords.
    drawn = (f for f in fields(cls) if f.init and f.compare and (f.default is f.default_factory or rng.random() < 0.8))
    return cls(**{f.name: _value(hints[f.name], rng) for f in drawn})


@pytest.mark.parametrize("cls", _serializable(), ids=lambda cls: cls.__name__)
def test_every_class_comes_back_as_it_was(cls: Any) -> None:
    rng = random.Random(0)
    for _ in range(100):
        value = _instance(cls, rng)
        text = json.dumps(value.to_json())
        again = cls.from_json(json.loads(text))
        assert again == value
        assert json.dumps(again.to_json()) == text


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Circle:
    json_kind: ClassVar[str] = "circle"
    radius: float


@dataclass(frozen=True)
class Square:
    json_kind: ClassVar[str] = "square"
    side: float = 1.0


Shape: TypeAlias = "Circle | Square"


@dataclass(frozen=True)
class Drawing(Serializable):
    shapes: tuple[Shape, ...]
    colour: Colour | None = None
    pair: tuple[int, str] = (0, "")
    inner: Drawing | None = field(default=None, metadata=coded(omit=True))
    file: Path | None = None
    count: int = field(default=0, metadata=coded(key="n", read=int, write=str))

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("a drawing has a negative count")


FULL = Drawing((Circle(2.0), Square()), Colour.RED, (3, "x"), Drawing(()), Path("/a"), 7)


def test_kinds_keys_enums_paths_and_classes_that_contain_themselves() -> None:
    data = to_json(FULL)
    assert data["shapes"] == [{"kind": "circle", "radius": 2.0}, {"kind": "square", "side": 1.0}]
    assert (data["colour"], data["pair"], data["file"], data["n"]) == ("red", [3, "x"], "/a", "7")
    assert "inner" not in data["inner"]  # type: ignore[operator]
    assert from_json(Drawing, json.loads(json.dumps(data))) == FULL


@pytest.mark.parametrize(
    "data, where, words",
    [
        ([], "f.json", "an object with"),
        ({}, "f.json", "lacks 'shapes' (a list)"),
        ({"shapes": [], "size": 1}, "f.json", "has the key 'size' (one of colour,"),
        ({"shapes": [{"kind": "circle", "radius": 1.0}, {"kind": "line"}]}, "f.json: shapes[1]", "is of kind 'line'"),
        ({"shapes": [{"kind": "circle", "radius": "a"}]}, "f.json: shapes[0].radius", "is 'a' (a number)"),
        ({"shapes": [{"kind": ["circle"]}]}, "f.json: shapes[0]", "one of circle, square"),
        ({"shapes": [], "colour": "blue"}, "f.json: colour", "is 'blue'"),
        ({"shapes": [], "pair": [1]}, "f.json: pair", "a list of 2"),
        ({"shapes": [], "pair": [True, "a"]}, "f.json: pair[0]", "is True (an integer)"),
        ({"shapes": [], "inner": {"shapes": 1}}, "f.json: inner.shapes", "is 1 (a list)"),
        ({"shapes": [], "n": "many"}, "f.json: n", "is not valid"),
        ({"shapes": [], "n": "-1"}, "f.json", "a drawing has a negative count"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(data: Any, where: str, words: str) -> None:
    with pytest.raises(Malformed) as caught:
        Drawing.from_json(data, "f.json")
    assert str(caught.value).startswith(f"{where}: ") and words in str(caught.value)
    assert isinstance(caught.value, BadInput) and isinstance(caught.value, ValueError)


def test_a_type_without_json_is_an_error_of_the_class() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: set[int]

    with pytest.raises(TypeError, match="coded"):
        to_json(Odd(set()))


def test_kernels_written_before_the_codec_are_read_and_keep_their_ids() -> None:
    data = json.loads(
        '{"name": "k", "language": "c", "sources": [{"name": "k.c", "text": "int x;"}], "flags": ["-O3"], "plan": '
        '{"prepare": [], "steps": [{"entry": "run", "args": [{"kind": "tensor", "tensor": "A"}, {"kind": "workspace", '
        '"name": "w", "bytes": "4 * M", "zeroed": true, "align": 64}, {"kind": "tensor_map", "tensor": "B", "spec": '
        '{"box": [8, 8], "swizzle": "128"}}], "grid": [1, 1, 1], "block": ["M", 1, 1], "cluster": [1, 1, 1], '
        '"shared_bytes": 0}]}}'
    )
    kernel = Kernel.from_json(data)
    assert kernel.to_json() == data
    assert kernel.id == "9e45ed01d9bcd04c795fd2bfbf87ef0302e418ffdc0a7c8001c86139185d4196"
    assert "requires" not in LaunchPlan((Step("run", (TensorArg("A"),)),)).to_json()
    assert kernel.sources == (Source("k.c", "int x;"),)


def test_a_class_is_looked_at_once() -> None:
    assert codec._plan(Measurement) is codec._plan(Measurement)

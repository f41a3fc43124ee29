"""`@deepgen.autotune` in place of `@triton.autotune`: what is tuned, and what is stored.

The calls themselves run in Triton's interpreter, in tests/examples/test_triton_examples.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
import torch
import triton_autotuned as sample

import deepgen as dg
from deepgen import targets
from deepgen.frontends import triton as decorator
from deepgen.frontends.triton import Tuning
from deepgen.frontends.triton.calls import Called, CalledFamily, Undescribable, operator_of
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.kernel import from_flags

CUDA = targets.resolve("cuda:sm_90")
ROWS = [{"BLOCK": 128, "num_warps": 1}, {"BLOCK": 256, "num_warps": 4}]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for kernel in (sample.scaled, sample.doubled):
        kernel.cache.clear()
    return tmp_path / "deepgen" / "autotune"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The searches that are started; each returns the last config."""
    made: list[Any] = []

    def searched(self: Tuning, called: Called, rows: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        made.append((called, rows))
        return (rows[-1] if rows else {"BLOCK": 128, "num_warps": 4}), {"seconds": 1e-5, "verdicts": {}}

    monkeypatch.setattr(Tuning, "_searched", searched)
    return made


def chosen(kernel: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    kernel._choose(args, {"grid": sample.blocks, "warmup": False, **kwargs})
    found = list(kernel.cache.values())[-1]
    return dict(found.all_kwargs())


def arguments(n: int = 300, of: Any = torch.float32) -> tuple[Any, ...]:
    return torch.arange(n).to(of), torch.ones(n, dtype=of), n, 3.0


def test_a_call_is_tuned_once_for_each_key_and_kept_on_disk(cache: Path, searches: list[Any]) -> None:
    assert chosen(sample.scaled, *arguments())["BLOCK"] == 256, "pruned: 512 is more than n"
    chosen(sample.scaled, *arguments())
    assert len(searches) == 1 and [row["BLOCK"] for row in searches[0][1]] == [128, 128, 256, 256]
    chosen(sample.scaled, *arguments(of=torch.float16))
    chosen(sample.scaled, *arguments(1000))
    assert len(searches) == 3 == len(list(cache.iterdir())), "another dtype and another n are other keys"
    sample.scaled.cache.clear()  # as in another process
    assert chosen(sample.scaled, *arguments())["BLOCK"] == 256 and len(searches) == 3
    assert sample.scaled.deepgen.note == "agrees with config 0"


def test_hooks_see_copies_and_the_call_s_tensors_stay(cache: Path, searches: list[Any]) -> None:
    given = arguments()
    chosen(sample.scaled, *given)
    assert float(searches[0][0].arguments["y"].sum()) == 0.0, "reset_to_zero"
    assert float(given[1].sum()) == 300.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "deepgen-autotune 1", "config": {"BLOCK": 7}}'])
def test_a_file_that_holds_something_else_is_tuned_again(cache: Path, searches: list[Any], text: str) -> None:
    chosen(sample.scaled, *arguments())
    (path,) = cache.iterdir()
    path.write_text(text)
    sample.scaled.cache.clear()
    assert chosen(sample.scaled, *arguments())["BLOCK"] == 256 and len(searches) == 2
    assert json.loads(path.read_text())["format"] == decorator.FORMAT


def test_a_space_instead_of_a_list(cache: Path, searches: list[Any]) -> None:
    x, y, n, _ = arguments(200)
    assert chosen(sample.doubled, x, y, n)["num_warps"] == 4
    assert searches[0][1] is None
    operator = operator_of(searches[0][0], None, sample.doubled.deepgen.knobs, sample.doubled.deepgen.requires)
    assert operator.family.space(operator, CUDA).count() == 4, "BLOCK <= n, which is 200"


def test_what_is_built_is_what_triton_would_build(cache: Path) -> None:
    """Numbers have the values of the call, None is a constant, strides and misaligned addresses are preserved."""
    x = torch.arange(641, dtype=torch.float32)[1:].reshape(20, 32)[:, ::2]
    called = Called(sample.scaled.fn.fn, {"x": x, "y": torch.ones(320), "n": 320, "by": 3.0}, sample.blocks,
                    [sample.scaled.fn.values])  # fmt: skip
    operator = operator_of(called, ROWS)
    family = operator.family
    assert isinstance(family, CalledFamily) and operator.judge() == "config 0"
    kernel = family.emit(operator, CUDA, {"config": 1})
    unit = from_flags(kernel.flags)
    assert unit.constants == {"BLOCK": 256, "EVEN": False} and unit.options == {"num_warps": 4}
    assert unit.parameters["n"] == ["i32", "divisible"] and unit.parameters["x"] == ["*fp32"]
    assert unit.parameters["y"] == ["*fp32", "divisible"]
    assert kernel.plan.steps[0].grid == (2, 1, 1)
    assert operator.inputs(0)["x"].shape == (639,), "from the first element to the last, gaps included"


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"x": torch.ones(8, dtype=torch.bool)}, "x is a tensor of bool"), ({"by": True}, "by is a bool")],
)
def test_what_only_triton_can_call_is_told(changed: dict[str, Any], says: str) -> None:
    given = {"x": torch.ones(8), "y": torch.ones(8), "n": 8, "by": 1.0, **changed}
    with pytest.raises(Undescribable, match=says):
        operator_of(Called(sample.scaled.fn.fn, given, (1,), [sample.scaled.fn.values]), ROWS)


def test_triton_times_such_a_call_in_this_process_with_a_warning(cache: Path) -> None:
    x, y, n, _ = arguments()
    with pytest.warns(RuntimeWarning, match="scaled is timed in this process: by is a bool"):
        sample.scaled._choose((x, y, n, True), {"grid": sample.blocks})
    assert not sample.scaled.cache and not cache.exists()


def test_where_the_first_config_fails_the_next_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(self: Tuning, called: Called, rows: Any) -> Any:
        if rows[0]["BLOCK"] == 1:
            raise DeepgenError("config 0 crashed")
        return rows[0], {}

    monkeypatch.setattr(Tuning, "_searched", searched)
    tuning = Tuning({}, (), 10, None, None, True, False)
    called = Called(sample.scaled.fn.fn, {}, (1,))
    config, facts = tuning.search(called, [{"BLOCK": 1}, {"BLOCK": 2}, {"BLOCK": 3}])
    assert config == {"BLOCK": 2} and facts["agrees_with"] == "config 1" and "config 0 crashed" in facts["skipped"][0]


def test_configs_or_a_space() -> None:
    with pytest.raises(BadInput, match="configs= and space= are missing"):
        dg.autotune(key=[])
    with pytest.raises(BadInput, match="are both given"):
        dg.autotune(configs=[], space={}, key=[])

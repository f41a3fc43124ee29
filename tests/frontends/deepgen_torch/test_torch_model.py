"""A whole model: recorded, run with a library's kernels, and timed in several ways."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen as dg  # noqa: E402
import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.cli.main import main  # noqa: E402
from deepgen.frontends.torch import benching, recording, routes  # noqa: E402
from deepgen.frontends.torch.race import TorchRace  # noqa: E402
from deepgen.tuning import work  # noqa: E402
from deepgen.vocabulary import BadInput, DeepgenError  # noqa: E402


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 64), torch.nn.Softmax(-1))


class Listed(Everything):
    """A library with entries for the model's calls."""

    def list(self) -> Any:
        here = SimpleNamespace(runner="cpu")
        return [SimpleNamespace(operator=one, target=here) for one in (dg.gemm(16, 16, 16), dg.softmax(20, 64))]


def test_a_recording_lists_what_ran_forward_and_backward() -> None:
    made, x = model(), torch.randn(2, 10, 64)
    with dt.record() as work:
        for _ in range(3):
            made(x).sin().sum().backward()
    counts = {part.describe(): part.count for part in work.work.parts}
    assert counts["gemm f32 nt 20x48x64 bias"] == counts["gemm f32 nt 20x64x48 bias"] == 3
    assert counts["softmax f32 rows=20 cols=64"] == 3 and counts["aten::sin"] == 3
    assert counts["gemm f32 nn 20x48x64"] == 3, "the gradient of the hidden layer"
    assert sum(work.work.share(part) for part in work.work.parts) == pytest.approx(1.0)
    assert work.work.target == "cpu"


def test_without_autograd_the_same_operators_are_seen() -> None:
    made, x = model(), torch.randn(20, 64)
    with torch.inference_mode(), dt.record() as work:
        made(x)
    assert {part.describe() for part in work.work.tunable()} == {
        "gemm f32 nt 20x48x64 bias",
        "gemm f32 nt 20x64x48 bias",
        "softmax f32 rows=20 cols=64",
    }


def test_a_function_that_torch_takes_apart_is_one_operator() -> None:
    norm, x = torch.nn.RMSNorm(64), torch.randn(20, 64)
    with torch.no_grad(), dt.record() as work:
        norm(x)
        norm(x)
        x + x
    eps = torch.finfo(torch.float32).eps
    counts = {part.describe(): part.count for part in work.work.parts}
    assert counts == {f"rms_norm f32 rows=20 cols=64 eps={eps}": 2, "aten::add": 1}


def test_attention_is_one_operator() -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 12, 16)
    with torch.no_grad(), dt.record() as work:
        attend(q, q, q, is_causal=True)
        attend(q, k, k, enable_gqa=True, scale=0.5)
        attend(q, q, q, attn_mask=torch.zeros(9, 9))
        attend(q, q, q, attn_mask=torch.ones(9, 9, dtype=torch.bool))
    met = {part.describe() for part in work.work.tunable()}
    assert "attention f32 bhsd batch 2, 4 heads, 9, width 16 causal" in met
    assert "attention f32 bhsd batch 2, 4/2 heads, 9x12, width 16 scale=0.5" in met
    assert "attention f32 bhsd batch 2, 4 heads, 9, width 16 bias" in met


def test_sizes_that_vary_are_one_operator_of_several_shapes(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 64), torch.nn.Softmax(-1))
    with torch.no_grad(), dt.record(dynamic=True) as recorded:
        for rows in (16, 64, 40, 2048):
            layers(torch.randn(rows, 64))
    recorded.save(tmp_path / "work.json")
    read = work.from_json(json.loads((tmp_path / "work.json").read_text()), "work.json")
    assert read == recorded.work
    shapes = {}
    for part in read.tunable():
        word, columns = ("M", "N") if isinstance(part.what, dg.Gemm) else ("rows", "cols")
        sizes = [shape.sizes() for shape in (part.what, *part.also) if not isinstance(shape, str)]
        assert {each[columns] for each in sizes} == {sizes[0][columns]}
        shapes[part.count, sizes[0][columns], word] = sorted(each[word] for each in sizes)
    assert {key for key in shapes if key[0] == 1} == {(1, 96, "M"), (1, 64, "M"), (1, 64, "rows")}, "2048 is far away"
    for key in ((3, 96, "M"), (3, 64, "M"), (3, 64, "rows")):
        least, *between, most = shapes[key]
        assert (least, most) == (16, 64) and 1 <= len(between) <= 2, "one was drawn"


def test_sizes_that_vary_together_are_drawn_together() -> None:
    """Of causal attention with more queries than keys, the first would see nothing."""
    shapes = [dg.attention(1, 2, tokens, tokens, 16, causal=True) for tokens in (100, 165)]
    recorded = work.ordered("cpu", [work.RecordedPart(shape, 1, 1.0) for shape in shapes])
    [part] = recording.joined(recorded).parts
    assert len(part.also) == 2
    assert all(one.sizes()["SQ"] == one.sizes()["SK"] for one in part.also)


def test_a_recording_is_read_after_its_end() -> None:
    with dt.record() as work, pytest.raises(DeepgenError, match="leave the `with` block"):
        work.save("work.json")


def test_what_cannot_be_timed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("def make():\n    return print\n")
    cases = {
        "model.py": "FILE:FUNCTION",
        "model.py:other": "no function",
        "no.py:make": "no file",
        "model.py:make": "fill it first",
    }
    for given, words in cases.items():
        assert main(["bench", given, "--library", "empty"]) == 2
        assert words in capsys.readouterr().err


def test_outputs_are_compared_with_eager_torchs() -> None:
    def make() -> Any:
        weight = torch.ones(8, 8)
        return lambda: torch.nn.functional.linear(torch.ones(4, 8), weight)

    result = benching.bench(make, Listed(), rounds=2, compiled=False)
    assert [row.name for row in result.rows] == ["eager", "eager + deepgen"]
    assert all(row.difference == 0.0 and len(row.samples) == 2 for row in result.rows)
    assert benching._difference([torch.tensor([1.0, 3.0])], [torch.tensor([1.0, 2.0])]) == 0.5


def test_calls_that_kernels_served_are_counted_for_each_way() -> None:
    result = benching.bench(lambda: (model(), torch.randn(20, 64)), Listed(), rounds=1, compiled=False)
    ours = {met.operator.describe() for met in result.met if met.ours}
    eager, with_library = result.rows
    assert not eager.served and with_library.served == dict.fromkeys(ours, 1) and not with_library.refused
    assert result.to_json()["rows"][1]["served"] == with_library.served


@pytest.mark.usefixtures("in_python")
def test_what_a_library_makes_slower_is_said_with_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """With given times: with softmax or with the whole library the model is slower."""
    for name in ("race", "race_for_cores"):
        monkeypatch.setattr(routes, name, lambda *_: TorchRace(1.0, 2.0, True))
    timed: list[set[str]] = []
    own = torch.softmax, torch.nn.functional.linear

    def given_times(ways: Any, rounds: int) -> dict[str, list[float]]:
        with ways[1].within() as used:
            ways[1].run()
            if timed:
                now = torch.softmax, torch.nn.functional.linear
                changed = [one for one, other in zip(now, own, strict=True) if one is not other]
                assert len(changed) == 1, "what serves other operators must not be blamed on this one"
        timed.append({met.operator.name for met in used.met if met.ours})
        return {"eager": [1.0] * 6, "eager + deepgen": [1.25 if "softmax" in timed[-1] else 0.9] * 6}

    monkeypatch.setattr(benching, "_timed", given_times)
    result = benching.bench(lambda: (model(), torch.randn(20, 64)), Listed(), rounds=6, compiled=False)
    assert sorted(map(len, timed)) == [1, 1, 1, 2]
    assert "eager + deepgen reaches 0.80 of eager" in result.warning
    assert "Slower kernels: softmax f32 rows=20 cols=64 (0.80 alone)." in result.warning
    assert "gemm" not in result.warning and result.to_json()["warning"] == result.warning


def test_what_a_file_makes_is_run_however_it_is_given() -> None:
    x = torch.ones(2)
    for made in ((torch.neg, x), (torch.neg, (x,)), lambda: -x):
        assert benching.runnable(made)().tolist() == [-1.0, -1.0]
    with pytest.raises(BadInput, match="it returned str"):
        benching.runnable("model")


def test_errors_of_a_users_model_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no weights\nand more")

    with pytest.raises(DeepgenError, match=r"^the function that makes the model fails: ValueError: no weights$"):
        benching.bench(fails, Listed(), rounds=1)
    with pytest.raises(DeepgenError, match=r"^the model fails: ValueError: no weights$"):
        benching.bench(lambda: fails, Listed(), rounds=1)
    monkeypatch.setattr(torch, "compile", lambda run: fails)
    with pytest.raises(DeepgenError, match=r"^torch.compile fails; skip it with --no-compile: ValueError"):
        benching.bench(lambda: (torch.neg, torch.ones(2)), Listed(), rounds=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeepgenError, match="a GPU that torch can use is missing"):
        benching.bench(lambda: (torch.neg, torch.ones(2)), Listed(), rounds=1, graphs=True)


def test_a_gpu_is_kept_busy_while_its_operators_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the host is slower than the GPU, small operators were once timed by the host: 68 us for a sum of 4 us."""
    now, waits = [0.0], list[float]()
    monkeypatch.setattr(recording.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: waits.append(now[0]))
    recorder = recording._Recorder()
    for _ in range(100):
        recorder._keep_ahead()
        now[0] += 0.1 * recording._AHEAD_SECONDS
    apart = [b - a for a, b in pairwise(waits)]
    assert waits[0] == 0.0 and len(waits) > 10
    assert max(apart) < 0.7 * recording._AHEAD_SECONDS, "the wait before has not ended"

"""`deepgen bench`: a whole model in torch, with and without a library's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen.frontends.cli import options
from deepgen.frontends.cli.library import DEFAULT, Folder
from deepgen.frontends.cli.output import paragraph, print_json, table
from deepgen.frontends.torch import benching
from deepgen.frontends.torch.benching import ModelBench
from deepgen.libraries import library as opened
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.finding import module_at

Model = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNCTION",
        help="A Python file and a function in it that returns (model, input, ...), or a callable without arguments.",
        show_default=False,
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Number of timing rounds for each variant.")]
NoCompile = Annotated[bool, typer.Option("--no-compile", help="Skip torch.compile, which is slow to start.")]
Graphs = Annotated[bool, typer.Option("--cuda-graphs", help="Also time the model replayed as a CUDA graph.")]


def bench(
    model: Model,
    library: Folder = DEFAULT,
    rounds: Rounds = 20,
    no_compile: NoCompile = False,
    cuda_graphs: Graphs = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Time a torch model with and without a library's kernels.

    It runs eagerly and compiled, in interleaved rounds. Slowdowns caused by the library are reported (`warning` in
    --json); the exit code is 0 whenever the model was timed.
    """
    make = _function(model)
    kernels = opened(library, create=True, trust=trust)  # a library that does not exist also has no kernels
    if not kernels.list():
        raise BadInput(f"{library} has no kernels", allowed="fill it first: deepgen tune work.json --library DIR")
    result = benching.bench(make, kernels, rounds=rounds, compiled=not no_compile, graphs=cuda_graphs)
    if as_json:
        print_json(result.to_json())
    else:
        _show(model, result)


def _function(model: str) -> Any:
    file, _, name = model.rpartition(":")
    if not file or not name:
        raise BadInput(f"{model!r} does not name a function", allowed="FILE:FUNCTION, such as model.py:make")
    function = getattr(module_at(Path(file)), name, None)
    if not callable(function):
        raise BadInput(f"{file} has no function {name!r}", allowed="a function that returns (model, input, ...)")
    return function


def _show(model: str, result: ModelBench) -> None:
    rows = []
    for row in result.rows:
        ratio = f"{row.faster.estimate:.3f} ({row.faster.low:.3f} to {row.faster.high:.3f})"
        speed = "" if row.name == row.than else f"{ratio} of {row.than}"
        rows.append((row.name, seconds_text(row.seconds), f"{row.difference:.1e}", speed))
    table(model, ("way", "time", "difference", "speed"), rows, right=("time", "difference"))
    served = [
        (met.operator.describe(), "deepgen" if met.ours else "torch", result.calls_of(met.operator), met.why)
        for met in result.met
    ]
    table(None, ("operator", "served by", "calls", "why"), served, right=("calls",))
    if result.warning:
        paragraph(result.warning)

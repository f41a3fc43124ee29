"""Arguments and options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen.cli import completion

OF_OPERATOR = ("dtype", "layout", "fast_sums")  # options that say what a word of that name may say, too

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE...",
        help="Such as: gemm M=1024 N=2048 K=3072, or gemm MNK=1024.",
        show_default=False,
        autocompletion=completion.operators,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="A study's folder, a folder that holds one, or a study's name.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Number format of the tensors, as the word dtype=.",
        show_default=False,
        autocompletion=completion.dtypes,
    ),
]
Layout = Annotated[
    str | None,
    typer.Option("--layout", help="Which way tensors lie in memory, as the word layout=.", show_default=False),
]
FastSums = Annotated[
    bool, typer.Option("--fast-sums", help="Fewer bits than f32 has may do for sums, as the word fast_sums=true.")
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="NAME=VALUE...",
        help="Another shape for the same kernel, by the words that differ, such as M=64. May be repeated; what counts "
        "is the geometric mean of all times.",
        show_default=False,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Where it runs, such as x86:native. [the best device here]",
        show_default=False,
        autocompletion=completion.targets,
    ),
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="The family of kernels, or `all`: a study of each. [the fastest there, as measured]",
        show_default=False,
        autocompletion=completion.families,
    ),
]
OneFamily = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="The family of kernels. [the fastest there, as measured]",
        show_default=False,
        autocompletion=completion.families,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Of kernels and baselines on a CPU, at most. [all cores]", show_default=False
    ),
]
Trials = Annotated[
    int | None, typer.Option("--trials", min=1, help="How many configs to try. [200]", show_default=False)
]
TimeBudget = Annotated[
    float | None,
    typer.Option("--time-budget", min=0.001, help="Seconds in all, finals included. [no limit]", show_default=False),
]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Builds at a time. [one a core]", show_default=False)]
Engine = Annotated[
    str, typer.Option("--engine", help="Where the work is done: local, or ray for a Ray cluster.", show_default=True)
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="With --engine ray: HOST:PORT, or auto for the cluster that this machine is in. [one is started here]",
        show_default=False,
    ),
]
KeepTop = Annotated[
    int | None,
    typer.Option("--keep-top", min=1, help="How many go to the finals, beside the default. [8]", show_default=False),
]
Detach = Annotated[bool, typer.Option("--detach", help="Go on in the background, also when the terminal closes.")]
OutFolder = Annotated[
    Path | None, typer.Option("--out", help="The folder for studies. [deepgen-studies]", show_default=False)
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of inputs and search. [0]", show_default=False)]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", help="How configs are chosen. [model]", show_default=False, autocompletion=completion.strategies
    ),
]
StartFrom = Annotated[
    int | None,
    typer.Option("--start-from", min=0, help="The first rank, with --strategy exhaustive. [0]", show_default=False),
]
NoTransfer = Annotated[bool, typer.Option("--no-transfer", help="Learn nothing from earlier studies.")]
NoSecondLook = Annotated[
    bool, typer.Option("--no-second-look", help="Run every built kernel, also those that their build shows to be slow.")
]
TargetSpeedup = Annotated[
    float | None,
    typer.Option(
        "--target-speedup", min=0.001, help="Stop once so many times faster than every baseline.", show_default=False
    ),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Stop after so many trials without a better one.", show_default=False),
]
SpaceStrategy = Annotated[
    int | None,
    typer.Option(
        "--space-strategy",
        min=0,
        max=1,
        help="For a tuning config of the older tool: 0 filters its product, 1 prunes it. [1]",
        show_default=False,
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run code and binaries that somebody else's deepgen put into it.")]
Warm = Annotated[bool, typer.Option("--warm", help="Time with warm caches instead of cold ones.")]


def of_operator(dtype: str | None, layout: str | None, fast_sums: bool) -> dict[str, Any]:
    """What these options say of the operator: a word each."""
    said = zip(OF_OPERATOR, (dtype, layout, fast_sums or None), strict=True)
    return {name: value for name, value in said if value is not None}

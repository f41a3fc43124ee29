"""Arguments and options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen.frontends.cli import completion

OF_OPERATOR = ("dtype", "layout", "epilogue", "fast_sums")  # options that say what a word of that name may say, too

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE...",
        help="For example: gemm M=1024 N=2048 K=3072, or gemm MNK=1024.",
        show_default=False,
        autocompletion=completion.operators,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study's folder, a folder that contains one study, or a study's name.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Data type of the tensors; same as dtype=...",
        show_default=False,
        autocompletion=completion.dtypes,
    ),
]
Layout = Annotated[
    str | None,
    typer.Option("--layout", help="Memory layout of the tensors; same as layout=...", show_default=False),
]
Epilogue = Annotated[
    str | None,
    typer.Option(
        "--epilogue",
        metavar="STEP,...",
        help="What is done with the result, such as bias,relu; same as epilogue=...",
        show_default=False,
    ),
]
FastSums = Annotated[
    bool, typer.Option("--fast-sums", help="Allow accumulation in less than f32 precision; same as fast_sums=true.")
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="NAME=VALUE...",
        help="Another shape for the same kernel: the parameters that differ, such as M=64. Repeatable. Kernels are "
        "ranked by the geometric mean of their times.",
        show_default=False,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Device to tune for, such as x86:native. [the best device here]",
        show_default=False,
        autocompletion=completion.targets,
    ),
]
BoardHost = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="USER@HOST[:PORT]",
        help="With a target of boards, such as riscv:k1: the one that runs kernels, over SSH. [qemu here]",
        show_default=False,
    ),
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="Kernel family, or `all` for a study of each. [the fastest one for the target]",
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
        "--threads", min=1, help="Maximum threads of CPU kernels and baselines. [all cores]", show_default=False
    ),
]
Trials = Annotated[
    int | None, typer.Option("--trials", min=1, help="How many configs to try. [200]", show_default=False)
]
TimeBudget = Annotated[
    float | None,
    typer.Option(
        "--time-budget", min=0.001, help="Maximum seconds in total, finals included. [no limit]", show_default=False
    ),
]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Parallel builds. [one per core]", show_default=False)]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Where to build and measure: local, or ray for a Ray cluster.", show_default=True),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="With --engine ray: HOST:PORT, or auto for this machine's cluster. [start one here]",
        show_default=False,
    ),
]
KeepTop = Annotated[
    int | None,
    typer.Option("--keep-top", min=1, help="Finalists, in addition to the default config. [8]", show_default=False),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background; keeps running when the terminal closes.")
]
OutFolder = Annotated[
    Path | None, typer.Option("--out", help="The folder for studies. [deepgen-studies]", show_default=False)
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Random seed of inputs and search. [0]", show_default=False)
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", help="Search strategy. [model]", show_default=False, autocompletion=completion.strategies
    ),
]
StartFrom = Annotated[
    int | None,
    typer.Option("--start-from", min=0, help="First rank to try, with --strategy exhaustive. [0]", show_default=False),
]
NoTransfer = Annotated[bool, typer.Option("--no-transfer", help="Do not learn from earlier studies.")]
LearnFrom = Annotated[
    list[Path] | None,
    typer.Option(
        "--learn-from", help="A recording to start from, T4 or Kernel Tuner's cache; repeatable.", show_default=False
    ),
]
NoSecondLook = Annotated[
    bool,
    typer.Option(
        "--no-second-look", help="Run every built kernel, even if its build statistics predict that it is slow."
    ),
]
TargetSpeedup = Annotated[
    float | None,
    typer.Option(
        "--target-speedup",
        min=0.001,
        help="Stop once the best kernel is this many times as fast as every baseline.",
        show_default=False,
    ),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Stop after this many trials without improvement.", show_default=False),
]
SpaceStrategy = Annotated[
    int | None,
    typer.Option(
        "--space-strategy",
        min=0,
        max=1,
        help="For an older tuning config: 0 enumerates and filters, 1 prunes while enumerating. [1]",
        show_default=False,
    ),
]
Counters = Annotated[
    str | None,
    typer.Option(
        "--counters",
        metavar="default|EVENT,...",
        help="Count these events of every right kernel, in runs of their own. [none]",
        show_default=False,
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Compare with this implementation; repeatable. [all that can run]",
        show_default=False,
        autocompletion=completion.baselines,
    ),
]
IntoLibrary = Annotated[
    Path | None,
    typer.Option(
        "--library",
        metavar="DIR",
        help="Add the winners to this library. [deepgen-library where what is tuned was recorded, else none]",
        show_default=False,
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run code and binaries that this user's deepgen did not write.")]
Warm = Annotated[bool, typer.Option("--warm", help="Measure with warm caches instead of cold ones.")]


def of_operator(dtype: str | None, layout: str | None, epilogue: str | None, fast_sums: bool) -> dict[str, Any]:
    """What these options say of the operator: a word each."""
    values = zip(OF_OPERATOR, (dtype, layout, epilogue, fast_sums or None), strict=True)
    return {name: value for name, value in values if value is not None}

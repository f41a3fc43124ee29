"""`deepgen tune`: find the fastest verified kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.cli import options

if TYPE_CHECKING:
    from deepgen.engines import Engine as AnyEngine
    from deepgen.settings import Settings

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR SIZES... | FILE",
        help="Such as: gemm M=1024 N=2048 K=3072, or MN=1024 K=2048, or MNK=4096; t=500 sets the trials, O=0 detaches. "
        "Or a tuning config file: my.toml or my.json, also one of the older tool.",
        show_default=False,
    ),
]
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


def tune(
    context: typer.Context,
    words: Words,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    target: options.TargetName = None,
    family: options.Family = None,
    threads: options.Threads = None,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    jobs: options.Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    seed: options.Seed = None,
    strategy: options.Strategy = None,
    start_from: options.StartFrom = None,
    no_transfer: options.NoTransfer = False,
    no_second_look: options.NoSecondLook = False,
    target_speedup: options.TargetSpeedup = None,
    patience: options.Patience = None,
    space_strategy: options.SpaceStrategy = None,
    keep_top: options.KeepTop = None,
    out: options.OutFolder = None,
    warm: options.Warm = False,
    detach: options.Detach = False,
    as_json: options.AsJson = False,
) -> None:
    """Find the fastest kernel; run again, it goes on where it stopped."""
    from deepgen import settings
    from deepgen.cli import bundle, requests, session
    from deepgen.cli.detach import start
    from deepgen.measure.base import Policy

    on = _checked(engine, address)
    current = settings.load()
    policy = Policy(cold=not warm, timeout_seconds=current.limits.run_seconds)
    given = {
        "dtype": dtype,
        "layout": layout,
        "target": target,
        "family": family,
        "threads": threads,
        "trials": trials,
        "time_budget": time_budget,
        "seed": seed,
        "strategy": strategy,
        "options": None if start_from is None else {"start_from": start_from},
        "transfer": False if no_transfer else None,
        "second_look": False if no_second_look else None,
        "target_speedup": target_speedup,
        "patience": patience,
        "space_strategy": space_strategy,
        "keep_top": keep_top,
        "out": out,
    }
    wanted, words_detach = requests.from_words(words, given, current, policy)
    work = session.jobs_of(wanted)
    if detach or words_detach:
        start(context.obj.argv, [job.folder for job in work], as_json=as_json)
    else:
        with session.offering(bundle.command(words, given, warm=warm)):
            session.carry_out(work, on(current, jobs), as_json=as_json)


def _checked(name: str, address: str | None) -> Callable[[Settings, int | None], AnyEngine]:
    """How to make the engine of that name; says what is wrong before any work is done."""
    from deepgen.cli import session, toolchain
    from deepgen.vocabulary.errors import BadInput

    if name not in ("local", "ray"):
        raise BadInput(f"unknown engine {name!r}", allowed="local or ray")
    if name == "local":
        if address is not None:
            raise BadInput("--address is given without a Ray cluster", allowed="only with --engine ray")
        return session.engine

    def ray(settings: Settings, jobs: int | None) -> AnyEngine:
        from deepgen.engines.ray import RayEngine

        limits = toolchain.limits(settings)
        if address is not None:  # its nodes have folders and programs of their own
            return RayEngine(address=address, build_slots=jobs, limits=limits)
        slots = jobs or settings.limits.jobs
        return RayEngine(build_slots=slots, limits=limits, cache=settings.cache, toolchains=toolchain.paths(settings))

    return ray

"""The Python interface: the same defaults as the command line, but settings only if they are passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from deepgen import generators, targets
from deepgen.baselines import Baseline
from deepgen.generators import Generator
from deepgen.kernels.own import OwnKernel
from deepgen.operators import Operator
from deepgen.operators.expr.elements import Operand
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import as_operator
from deepgen.report.view.live import Watch, stop_on_ctrl_c, title_of, watching
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.tuning import Progress, Request, Study
from deepgen.tuning import tune as run
from deepgen.tuning.engines import Engine, LocalEngine, local_engine
from deepgen.tuning.finals.crowning import fresh_seed
from deepgen.tuning.judging import Judgement, Suspect
from deepgen.tuning.judging import judge as judged
from deepgen.tuning.progress import seconds_of
from deepgen.tuning.request import STUDIES, on_threads
from deepgen.tuning.search import DEFAULT, StrategyKind
from deepgen.tuning.study.definition import check_config
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.finding import being_loaded

if TYPE_CHECKING:
    from deepgen.compiler.rules.rule import Rule


def tune(
    operator: Operator | OwnKernel | Operand | Expression | Sequence[Operator],
    *,
    target: str | Target | None = None,
    trials: int = 200,
    time_budget: float | str | None = None,
    seed: int = 0,
    strategy: str | StrategyKind = DEFAULT,
    options: Mapping[str, Any] | None = None,
    transfer: bool = True,
    learn_from: Sequence[str | Path] = (),
    second_look: bool = True,
    target_speedup: float | None = None,
    patience: int | None = None,
    keep_top: int = 8,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    family: str | None = None,
    threads: int | None = None,
    generator: Generator | None = None,
    rules: Sequence[Rule] = (),
    policy: Policy | None = None,
    strict_floats: bool = False,
    baselines: bool | Callable[..., Any] | Sequence[str | type[Baseline] | Callable[..., Any]] = True,
    counters: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    engine: Engine | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
    watch: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Study:
    """Tune an operator on a target and return its study. Calling it again with the same arguments resumes the study.

    `operator` may be a kernel of your own (`dg.kernel`), or an expression (`dg.compute`). It may be a list of the same
    operator in several shapes. Then one kernel is tuned for all of them: it is verified at each shape, and ranked by
    the geometric mean of its times.

    `time_budget` is in seconds, or a text such as "20s", "5m" or "1h30m".

    `target` is a name such as "x86:native", or None for the best local device. `family` names one of deepgen's kernel
    families, such as "c_gemm", instead of the best for that target; `threads` is the maximum number of threads of
    kernels and baselines on a CPU. `knobs` restricts knobs to some of their values. `generator` is your own kernel
    family instead of deepgen's; `rules` are your own schedule rules, which the family "rules" tries before its own
    (docs/rules.md); `strategy` may be a class of your own. `baselines` is a list of
    names, of such classes, and of functions that take the operator's inputs by name and return its outputs; or one
    function. With `strict_floats` kernels that lose NaN or infinities, or flush denormals, count as wrong.
    `counters` is "default" or a list of hardware events to count for every correct kernel, in separate runs.
    `learn_from` names files with earlier measurements of the same kernel, in T4 or Kernel Tuner's cache format.
    `out` is the folder for studies.

    `progress` shows how far the run is, on stderr: live in a terminal and in a notebook, as lines elsewhere. False
    shows nothing, and so does None, the default, where a `watch` is given, which is called with the same facts, and
    `stop` ends the run when it is set. Ctrl-C also stops cleanly: all results are kept, then KeyboardInterrupt is
    raised. A second Ctrl-C does not wait.

    No `deepgen.toml` is read, because it names programs to run, and a script should do the same wherever it is started.
    To use one, pass it: `from deepgen import settings`, then `settings=settings.read("deepgen.toml")`, or
    `settings.load()` for what the command line would use in this folder. Arguments override settings, and `engine`
    overrides those of the local engine (`cache`, `toolchains`, build limits).
    """
    started = time.monotonic()
    if (script := being_loaded()) is not None:  # a worker loads it to find a baseline, or a command to find a kernel
        raise BadInput(f"{script.name} tunes whenever it is loaded", allowed='tune below `if __name__ == "__main__":`')
    if not isinstance(target, (str, Target, NoneType)):
        raise BadInput(f"target is {target!r}", allowed='a name such as "x86:native", or None')
    if not isinstance(settings, (Settings, NoneType)):
        raise BadInput(f"settings is {settings!r}", allowed='pass the result of deepgen.settings.read("deepgen.toml")')
    if settings is not None:
        target = settings.target if target is None else target
        out = settings.studies if out is None else out
        policy = policy or settings.limited(Policy(timeout_seconds=settings.limits.run_seconds))
        engine = engine or local_engine(settings)
    if isinstance(operator, OwnKernel):
        if family is not None or generator is not None or rules:
            raise BadInput("family= cannot be used with a kernel of your own", allowed="pass only the kernel")
        operator = operator.operator()
    operator = as_operator(operator)
    shapes = tuple(map(as_operator, operator)) if isinstance(operator, (list, tuple)) else (operator,)
    if not shapes:
        raise BadInput("no operator was given", allowed="one, or several shapes of one")
    if family is not None and generator is not None:
        raise BadInput("family and generator are both given", allowed="give one of them")
    if rules and generator is not None:
        raise BadInput(
            "rules and generator are both given", allowed="give one of them: rules apply to deepgen's own generators"
        )
    if family is not None or rules:
        generator = generators.by_name(family or generators.RULED[0], rules=rules)
    request = Request(
        operator=shapes[0],
        also=shapes[1:],
        target=target if isinstance(target, Target) else targets.resolve(target),
        trials=trials,
        time_budget=None if time_budget is None else seconds_of(time_budget),
        seed=seed,
        strategy=strategy,
        options=options or {},
        transfer=transfer,
        learn_from=tuple(map(Path, learn_from)),
        second_look=second_look,
        target_speedup=target_speedup,
        patience=patience,
        keep_top=keep_top,
        domains=knobs or {},
        generator=generator,
        policy=replace(policy or Policy(), strict_floats=True) if strict_floats else policy or Policy(),
        baselines=[baselines] if callable(baselines) else baselines,
        counters=counters,
        out=STUDIES if out is None else Path(out),
    )
    if threads is not None:
        request = on_threads(request, threads)
    if progress is None:
        progress = watch is None
    with stop_on_ctrl_c(stop) as stopping, watching(title_of(request), quiet=not progress) as view:
        study = run(request, engine=engine, watch=_both(view, watch), stop=stopping.event, started=started)
    if stopping.signum:
        sentence = f"stopped after {len(study.trials())} trials, all kept in {study.folder}"
        raise KeyboardInterrupt(f"{sentence}: repeat the call to resume")
    return study


def judge(
    operator: Operator | OwnKernel | Operand | Expression,
    config: Mapping[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    seed: int | None = None,
    family: str | None = None,
    policy: Policy | None = None,
    engine: LocalEngine | None = None,
) -> Judgement:
    """Verify one kernel as thoroughly as a winner: one config of your own kernel, or of a family.

    `config` defaults to the default config; knobs that it omits keep their default. Inputs are drawn from a fresh
    `seed`, which the result records. `result.right` is the verdict, `result.failed` lists the failed checks.
    """
    wanted = as_operator(operator.operator() if isinstance(operator, OwnKernel) else operator)
    on = target if isinstance(target, Target) else targets.resolve(target)
    chosen = generators.find(wanted, on, family)
    whole = {**chosen.default(wanted, on), **(config or {})}
    check_config(chosen.space(wanted, on), whole, "config")
    suspect = Suspect(wanted, on, chosen.emit(wanted, on, whole), whole)
    return judged(suspect, engine=engine, policy=policy, seed=fresh_seed() if seed is None else seed)


def _both(view: Watch, watch: Watch | None) -> Watch:
    def tell(progress: Progress) -> None:
        view(progress)
        if watch is not None:
            watch(progress)

    return tell

"""Random expressions under random legal schedules on an NVIDIA GPU: all must give what the expressions mean.

They are drawn as in tests/compiler/test_gpu_lowered.py, where hypothesis is, with inputs and answers; a host
with a GPU builds and runs what was drawn.

python benchmarks/rules_random.py draw 500 drawn.json
PYTHONPATH=src python benchmarks/rules_random.py run drawn.json --out benchmarks/results/rules_random.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib import import_module
from math import prod
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
RULES_TESTS = HERE.parent / "tests" / "generators" / "rules"
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(RULES_TESTS), str(HERE.parent / "tests" / "operators")]

import numpy as np  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.compiler.passes.gpu.lower import lower  # noqa: E402
from deepgen.compiler.passes.ir import For, Stmt, children  # noqa: E402
from deepgen.compiler.schedule import text as schedules  # noqa: E402
from deepgen.compiler.schedule.steps import SERIAL  # noqa: E402
from deepgen.compiler.text.gpu import kernel  # noqa: E402
from deepgen.operators.expr import serial  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel  # noqa: E402
from deepgen.vocabulary.dtypes import dtype, narrow, widen  # noqa: E402
from gpu_bench import Loaded, conditions, gpu_torch, open_device  # noqa: E402

MOST_STATEMENTS, MOST_THREADS = 3000, 1024
LARGEST = 1e6  # beyond, f32 does not hold products of what is drawn


def draw(count: int, file: Path) -> None:
    """By the tests' own generators."""
    expressions, naive = (getattr(import_module("expressions"), name) for name in ("expressions", "naive"))
    random_program = import_module("gpu_schedules").random_program
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    found: list[dict[str, Any]] = []

    @settings(max_examples=2 * count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(expressions(most=9), st.integers(0, 2**32))
    def collect(expression: Any, seed: int) -> None:
        if len(found) == count:
            return
        numbers = np.random.default_rng(len(found))
        kinds = {t.name: dtype(t.dtype) for t in expression.tensors}
        drawn = {t.name: numbers.integers(-4, 5, t.shape) for t in expression.tensors}
        inputs = {n: np.abs(x) if kinds[n].name == "u8" else x for n, x in drawn.items()}
        stages = replace(expression, outputs=tuple(stage.name for stage in expression.stages))
        meant = naive(stages, {n: widen(narrow(x.astype(float), kinds[n]), kinds[n]) for n, x in inputs.items()})
        if any(np.abs(values).max() > LARGEST or not np.isfinite(values).all() for values in meant.values()):
            return
        schedule, program = random_program(expression, Random(f"{seed} {len(found)}"))
        launches = program.launches
        if sum(_written_out(launch.body) for launch in launches) > MOST_STATEMENTS:
            return
        if any(prod(launch.threads) > MOST_THREADS for launch in launches):
            return
        found.append(
            {
                "expression": serial.to_json(expression),
                "schedule": schedules.to_json(schedule),
                "inputs": {name: x.tolist() for name, x in inputs.items()},
                "answers": {name: np.asarray(meant[name], float).tolist() for name in expression.outputs},
            }
        )

    collect()
    file.write_text(json.dumps(found))
    print(f"{len(found)} drawn")


def _written_out(statement: Stmt) -> int:
    """How many statements a compiler sees: some random schedules write out so much that it takes minutes."""
    inside = sum(map(_written_out, children(statement)))
    if isinstance(statement, For):
        return inside * (statement.extent if statement.kind != SERIAL else 1)
    return max(1, inside)


def run(file: Path, out: Path, cores: int) -> int:
    torch = gpu_torch()
    cases = [(serial.from_json(one["expression"]), one) for one in json.loads(file.read_text())]
    made: list[Kernel] = []
    for n, (expression, one) in enumerate(cases):
        program = replace(lower(expression, schedules.from_json(one["schedule"])), name=f"case{n}")
        made.append(kernel(program, "cuda", 32))
    wrong: list[dict[str, Any]] = []
    with open_device(cores) as (builder, _, driver):
        for one in made:
            builder.start(one)
        for n, (expression, one) in enumerate(cases):
            kinds = {t.name: dtype(t.dtype) for t in expression.tensors}
            given = {name: narrow(np.array(x, float), kinds[name]) for name, x in one["inputs"].items()}
            shapes = {name: np.array(answer).shape for name, answer in one["answers"].items()}
            blank = {name: np.empty(shape, dtype(expression.dtype_of(name)).numpy()) for name, shape in shapes.items()}
            kept = {
                name: torch.from_numpy(np.atleast_1d(x).view(np.uint8)).cuda() for name, x in (given | blank).items()
            }
            for name in blank:
                kept[name].fill_(0xFF)
            problem = SimpleNamespace(tensors=lambda: (), scalars=dict)
            bench: Any = SimpleNamespace(
                torch=torch, problem=problem, tensors={name: x.data_ptr() for name, x in kept.items()}
            )
            try:
                loaded = Loaded(bench, made[n], builder.image(made[n]), driver)
                loaded()
                torch.cuda.synchronize()
                loaded.close()
            except DeepgenError as error:
                wrong.append({"number": n, "error": str(error)[:500]})
                continue
            for name, answer in one["answers"].items():
                of = dtype(expression.dtype_of(name))
                got = widen(kept[name].cpu().numpy().view(of.numpy()).reshape(shapes[name]), of)
                if not _right(got, np.array(answer), of):
                    wrong.append({"number": n, "error": f"{name} is {got.tolist()!s:.200}, not {answer!s:.200}"})
    print(f"{len(cases)} expressions, {len(wrong)} wrong")
    for one in wrong[:5]:
        print(one)
    out.write_text(json.dumps({"conditions": conditions(), "expressions": len(cases), "wrong": wrong}, indent=1) + "\n")
    return int(bool(wrong))


def _right(got: Any, meant: Any, of: Any) -> bool:
    if of.integer:
        return bool(np.array_equal(got, meant))
    close = 64 * of.epsilon
    return bool(np.allclose(got, meant, rtol=close, atol=close * (1 + np.abs(meant).max(initial=0))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("count", type=int)
    drawing.add_argument("file", type=Path)
    running = commands.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("--cores", type=int, default=14)
    running.add_argument("--out", type=Path, default=HERE / "results" / "rules_random.json")
    options = parser.parse_args()
    if options.command == "draw":
        draw(options.count, options.file)
        return 0
    return run(options.file, options.out, options.cores)


if __name__ == "__main__":
    run_main(main)

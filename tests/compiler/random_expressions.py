"""Random expressions (`drawn.py`) as kernels, each with a config of its space: do the results match numpy?

    python tests/compiler/random_expressions.py --count 5000 --target cpu --compiler gcc

On CPUs kernels are compiled with the flags of studies, many in one file, and run between guard pages. For another
machine: `--target x86:avx2 --compiler x86_64-linux-gnu-gcc --run "qemu-x86_64 -L SYSROOT"`, but qemu 7.2 loads 16 bytes
for some instructions that load 4. `--keep FOLDER` keeps the compiled files; `cuda` and `hip` are emulated,
`cuda:native` is this machine's GPU; `--only N` repeats one case of a seed. `--convolutions` draws convolutions
(`drawn_convolutions.py`) instead, `--rows` rows and elements (`drawn_rows.py`), `--eight-bits` 8-bit floats.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from drawn import random_eight_bits, random_expression
from drawn_convolutions import random_convolution
from drawn_rows import random_rows

import deepgen as dg
from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.compiler.intrinsics.dots import EMULATED
from deepgen.compiler.passes.ir import Function, Program
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.sketch import THREADS, space_of
from deepgen.compiler.text import c, gpu
from deepgen.compiler.text.c import file_text
from deepgen.operators.compare import compare
from deepgen.operators.expr.operator import as_operator
from deepgen.run.call.loaded import load
from deepgen.targets import Cpu, Gpu
from deepgen.toolchains import build_once
from deepgen.toolchains.compilers.c import gcc_or_clang
from deepgen.vocabulary import DeepgenError
from deepgen.vocabulary.dtypes import dtype

AT_ONCE = 40  # kernels per file
SECONDS = 300  # time limit for a file of kernels
MOST_THREADS = 1 << 22  # of a kernel that is emulated: ten million take minutes
NAMES = {"cuda": "cuda:sm_90a", "hip": "hip:gfx90a", "clang": "clang-19"}


@dataclass(frozen=True)
class Case:
    """A kernel: an expression and a config."""

    number: int
    operator: Any  # with an expression
    sketch: str
    config: dict[str, Any]
    lowered: Any  # a Function, or a Program

    def __str__(self) -> str:
        what = f"{self.operator.describe()}: {dg.text(self.operator.expression())}"
        return f"{self.number}: {what}\n{self.sketch} {self.config}"

    def wrong(self, results: Sequence[Any], inputs: dict[str, Any], answers: Any) -> str:
        """How results differ from the expression's; empty if they match."""
        tensors = {t.name: t for t in self.operator.tensors()}
        for name, result in zip(self.operator.expression().outputs, results, strict=True):
            of = tensors[name]
            verdict = compare(result.reshape(of.shape), answers[name], of.dtype, self.operator.tolerance(name))
            if not verdict.ok:
                return f"{name}: {verdict}"
        return ""


def case(
    seed: int,
    number: int,
    target: Cpu | Gpu,
    draw: Callable[[Random], Any] = random_expression,
    most_threads: float = inf,
) -> Case | None:
    """The usual config, or any other; None if rules do not apply, for example to functions that HIP lacks, or if a GPU
    would need too many threads."""
    random = Random(f"{seed} {number}")
    operator: Any = as_operator(draw(random))
    rules = Rules()
    if rules.refuses(operator, target):
        return None
    sketch = random.choice(rules.sketches(operator, target))
    config = sketch.usual() if isinstance(target, Cpu) else {}
    if not config or random.random() < 0.6:
        [drawn] = space_of(sketch.name, [sketch]).sample(1, seed=number) or [config]
        config = dict(drawn)
    schedule = sketch.schedule(config)
    lowered: Function | Program
    if isinstance(target, Gpu):
        lowered = lower(sketch.expression, schedule, warp=target.warp)
        threads = sum(prod(part.blocks + part.threads) for launch in lowered.launches for part in launch.parts)
        if threads > most_threads:
            return None
    else:
        lowered = lower(sketch.expression, schedule, vector_bytes=target.vector_bytes)
    return Case(number, operator, sketch.name, config, lowered)


def compiled(cases: Sequence[Case], folder: Path, command: Sequence[str], target: Cpu) -> Path:
    """A program of kernels, compiled with the compiler's flags for a target."""
    path = command[0]
    about, machine = (subprocess.run([path, word], capture_output=True, text=True, check=True).stdout
                      for word in ("--version", "-dumpmachine"))  # fmt: skip
    named = next((word.removeprefix("--target=") for word in command if word.startswith("--target=")), machine)
    compiler = gcc_or_clang("compiler", path, about, named)
    functions = [one.lowered for one in cases]
    parts = [c.definitions(function, f"case{n}") for n, function in enumerate(functions)]
    for header in {h for function in functions for h in c.headers(function)}:
        (folder / header.name).write_text(header.text)
    (folder / "all.c").write_text(file_text(parts, parallel=(folder / "cpu_pool.h").exists()))
    (folder / "table.h").write_text(table(cases))
    (folder / "guarded.c").write_text((Path(__file__).parent / "guarded.c").read_text())
    flags = compiler._flags(target.instruction_sets)
    words = [*command, *flags, "-std=gnu11", "-w", "-pthread", "all.c", "guarded.c", "-o", "all", "-lm"]
    subprocess.run(words, cwd=folder, check=True)
    return folder / "all"


def table(cases: Sequence[Case]) -> str:
    lines, rows = [], []
    for n, one in enumerate(cases):
        function, threads = one.lowered, one.config[THREADS]
        count = len(function.parameters)
        sizes = ", ".join(str(b.elements * dtype(b.dtype).bytes) for b in function.parameters)
        lines.append(f"void case{n}({'void*, ' * (count + 1)}int32_t);")
        lines.append(f"static void call{n}(void** p, int32_t threads) {{")
        lines.append(f"    case{n}({''.join(f'p[{place}], ' for place in range(count + 1))}threads);\n}}")
        lines.append(f"static const long bytes{n}[] = {{{sizes}}};")
        scratch = function.shared_bytes + threads * function.thread_bytes + 1
        rows.append(f"    {{call{n}, {count}, {len(function.inputs)}, {threads}, {scratch}, bytes{n}}},")
    return "\n".join([*lines, "static const Case cases[] = {", *rows, "};", f"#define CASES {len(cases)}", ""])


def on_processor(cases: Sequence[Case], folder: Path, args: argparse.Namespace, target: Cpu) -> dict[int, str]:
    """The errors, by index of the case."""
    emulated = [f"-D{EMULATED}"] if args.emulated else []
    program = compiled(cases, folder, [*args.compiler.split(), *emulated], target)
    drawn = [one.operator.inputs(one.number) for one in cases]
    taken = [[inputs[b.name] for b in one.lowered.inputs] for one, inputs in zip(cases, drawn, strict=True)]
    (folder / "inputs").write_bytes(b"".join(array.tobytes() for arrays in taken for array in arrays))
    errors: dict[int, str] = {}
    results, first = folder / "results", 0
    while first < len(cases):
        results.write_bytes(b"")
        words = [*args.run.split(), str(program), str(folder / "inputs"), str(results), str(first)]
        try:
            ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
            said, status = ended.stdout.split("\n"), ended.returncode
        except subprocess.TimeoutExpired as late:
            said, status = (late.stdout or b"").decode().split("\n"), -1000
        numbers = [int(word) for word in said if word.isdigit()]
        last = len(cases) if status == 0 else numbers[-1] if numbers else first
        memory, at = results.read_bytes(), 0
        for n in range(first, last):
            answers = cases[n].operator.reference(drawn[n])
            for where in ("before a page", "after a page"):
                arrays = []
                for buffer in cases[n].lowered.outputs:
                    of = dtype(buffer.dtype)
                    arrays.append(np.frombuffer(memory, of.numpy(), buffer.elements, at))
                    at += buffer.elements * of.bytes
                if wrong := cases[n].wrong(arrays, drawn[n], answers):
                    errors[n] = f"{where}: {wrong}"
        if last < len(cases):
            errors[last] = f"ended with status {status}: {said[-2] if len(said) > 1 else ''}"
        first = last + 1
    return errors


def emulated(cases: Sequence[Case], folder: Path, args: argparse.Namespace, target: Gpu) -> dict[int, str]:
    sys.path.append(str(Path(__file__).parents[1] / "kernels"))
    from compiled import in_child
    from emulated import library, run

    loaded = library([one.lowered for one in cases], folder, target.warp)
    errors: dict[int, str] = {}
    first = 0
    while first < len(cases):
        seen = folder / "seen"
        seen.write_text("")

        def work(say: Callable[[str], None], first: int = first, seen: Path = seen) -> None:
            with seen.open("a") as out:
                for n, one in enumerate(cases[first:], first):
                    print(n, file=out, flush=True)
                    inputs = one.operator.inputs(one.number)
                    error, results = run(loaded, n, one.lowered, [inputs[b.name] for b in one.lowered.inputs])
                    error = error or one.wrong(results, inputs, one.operator.reference(inputs))
                    if error:
                        print(n, " ".join(error.split()), file=out, flush=True)

        crash = in_child(work)
        lines = seen.read_text().splitlines()
        errors |= {int(n): error for n, _, error in (line.partition(" ") for line in lines) if error}
        last = int(lines[-1].partition(" ")[0]) if lines else first
        if crash:
            errors[last] = f"crash: {crash[:200]}"
        first = last + 1
    return errors


def on_device(cases: Sequence[Case], target: Gpu) -> dict[int, str]:
    """Called as by users, with torch tensors. Cases after a crash are lost."""
    import torch

    kernels = [gpu.kernel(one.lowered, target.languages[0], target.warp) for one in cases]
    with ThreadPoolExecutor() as pool:
        built = list(pool.map(lambda kernel: build_once(kernel, target), kernels))
    formats = {"bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    words = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
    errors: dict[int, str] = {}
    for n, (one, kernel, artifact) in enumerate(zip(cases, kernels, built, strict=True)):
        inputs, tensors = one.operator.inputs(one.number), {t.name: t.dtype for t in one.operator.tensors()}
        moved = {}
        for name, array in inputs.items():
            plain = torch.from_numpy(
                array.view(words[array.itemsize]) if tensors[name].name in formats else array
            ).cuda()
            moved[name] = plain.view(formats.get(tensors[name].name, plain.dtype))
        try:
            with closing(load(kernel, one.operator, target, Path(artifact.binary), artifact.plan)) as call:
                outputs = call(**moved)
            outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            torch.cuda.synchronize()
        except (DeepgenError, RuntimeError) as error:
            errors[n] = f"{type(error).__name__}: {error}"
            continue
        names = zip(one.operator.expression().outputs, outputs, strict=True)
        stored = [(tensors[name], out.reshape(-1).view(torch.uint8).cpu().numpy()) for name, out in names]
        results = [bytes_of.view(of.numpy()) for of, bytes_of in stored]
        if wrong := one.wrong(results, inputs, one.operator.reference(inputs)):
            errors[n] = wrong
    return errors


def failures(args: argparse.Namespace) -> Iterator[tuple[Case | None, str]]:
    """Every case, with its error."""
    target = targets.resolve(NAMES.get(args.target, args.target))
    assert isinstance(target, (Cpu, Gpu))
    numbers = [args.only] if args.only is not None else range(args.start, args.start + args.count)
    waiting: list[Case] = []
    for number in numbers:
        try:
            one = case(args.seed, number, target, args.draw, MOST_THREADS if args.target in NAMES else inf)
        except Exception as error:  # lowering is under test
            yield None, f"{number}: {type(error).__name__}: {error}"
            continue
        waiting += [one] if one is not None else []
        if waiting and (len(waiting) == args.at_once or number == numbers[-1]):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(args.keep or temporary)
                folder.mkdir(parents=True, exist_ok=True)
                if isinstance(target, Cpu):
                    errors = on_processor(waiting, folder, args, target)
                elif args.target in NAMES:
                    errors = emulated(waiting, folder, args, target)
                else:
                    errors = on_device(waiting, target)
            yield from ((one, errors.get(n, "")) for n, one in enumerate(waiting))
            waiting = []


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--run", default="", help="what runs programs of the target, such as qemu-x86_64")
    parser.add_argument("--emulated", action="store_true", help="without the target's instructions for products")
    parser.add_argument(
        "--convolutions", action="store_const", dest="draw", const=random_convolution, default=random_expression
    )
    parser.add_argument("--rows", action="store_const", dest="draw", const=random_rows)
    parser.add_argument("--eight-bits", action="store_const", dest="draw", const=random_eight_bits)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--keep")
    args = parser.parse_args(words)
    args.compiler = NAMES.get(args.compiler, args.compiler)
    return args


def main() -> int:
    args, right, wrong = options(), 0, 0
    for one, error in failures(args):
        right, wrong = right + (not error), wrong + bool(error)
        if error:
            print(f"WRONG {one or ''}\n{error}\n", flush=True)
        elif right % 200 == 0:
            print(f"{right} right, {wrong} wrong", flush=True)
    print(f"{args.target} {args.compiler} seed {args.seed}: {right} right, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""The result pages: tables generated from the committed JSON files under benchmarks/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from gemm_results import Group, groups, read
from harness import H200, RESULTS, ROOT
from readme_results import ON_H200, rows, speedup, table

FOLDER = "results"
BESIDE = {"eager": "torch", "compile": "torch.compile"}  # as kernelbench.py calls them
XEON_NOTE = """!!! warning "Ratios of small shapes on the Xeon are too good"

    They were taken before the timing was corrected: unreadable pages beside the tensors slowed down libraries that
    prefetch, numpy at 16x19x35 by almost half. They will be measured again."""


def pages() -> dict[str, str]:
    made = {
        "h200": _h200(),
        "x86": _x86(),
        "any-shape": _any_shape(),
        "kernelbench": _kernelbench(),
        "models": _models(),
        "triton": _triton(),
    }
    return {f"{FOLDER}/{name}.md": "\n".join(lines) + "\n" for name, lines in made.items()} | {
        f"{FOLDER}/index.md": _index()
    }


def _index() -> str:
    return f"""# Results

Each row compares deepgen with the vendor's library over all shapes of a suite. The mean is geometric. GPU kernels were
tuned for each shape; the x86 kernels are the defaults, without any search.

{XEON_NOTE}

{table(rows())}
![Speed relative to the vendor's library](../results.svg#only-light)
![Speed relative to the vendor's library](../results-dark.svg#only-dark)

Every table in this section is made from a JSON file in the repository when the site is built. Every file has the date,
the hardware, the versions and the command.

- [GEMM on an H200, shape by shape](h200.md)
- [GEMM on x86, shape by shape](x86.md)
- [Shapes drawn at random](any-shape.md)
- [KernelBench's single operators](kernelbench.md)
- [Whole models in torch](models.md)
- [Triton kernels](triton.md)

[How it was measured](../tensor-cores.md) has the methods, the missed goals and their causes.
"""


def _h200() -> Iterator[str]:
    yield "# GEMM on an H200\n"
    yield "Speed relative to cuBLASLt's fastest algorithm; above 1, deepgen is faster. L2 was cold.\n"
    files = {what: {_shape(race): race for race in read(H200 / f"{file}.json")} for what, file in ON_H200.items()}
    yield _table(
        ["shape", *files],
        [[shape, *(_ratio(races.get(shape)) for races in files.values())] for shape in next(iter(files.values()))],
    )
    yield "## Times\n"
    for what, races in files.items():
        yield f"### {what}\n"
        yield _table(
            ["shape", "deepgen, us", *(names := _rivals(races.values())), "family"],
            [
                [shape, _us(race, "deepgen"), *(_us(race, name) for name in names), f"`{race['generator']}`"]
                for shape, race in races.items()
            ],
        )


def _x86() -> Iterator[str]:
    yield "# GEMM on x86\n"
    yield (
        "Speed of the default kernels, without any search, relative to the faster of torch and numpy; above 1, deepgen "
        "is faster. [How it was measured](../x86.md) says what the machine was and which goals were missed.\n"
    )
    yield XEON_NOTE + "\n"
    by_kind: dict[str, dict[str, dict[str, Any]]] = {}
    columns: dict[str, None] = {}
    for group, races in groups(read(RESULTS / "cpu_gemm.json")).items():
        column = f"{group.threads} thread{'s' * (group.threads > 1)}, {group.caches}"
        columns[column] = None
        for race in races:
            by_kind.setdefault(_kind(group), {}).setdefault(_shape(race), {})[column] = race
    for kind, shapes in by_kind.items():
        used = [column for column in columns if any(column in races for races in shapes.values())]
        means = [statistics.geometric_mean([r[c]["ratio"] for r in shapes.values() if c in r]) for c in used]
        yield f"## {kind}\n"
        yield _table(
            ["shape", *used],
            [
                ["**mean**", *(f"**{mean:.2f}**" for mean in means)],
                *([shape, *(_ratio(races.get(column)) for column in used)] for shape, races in shapes.items()),
            ],
        )


def _kind(group: Group) -> str:
    dtype = "u8 x i8" if group.dtype == "u8" else group.dtype
    return f"{dtype} {group.layout} ({group.isa})" + ", constant B" * group.constant_b


ANY_SHAPE = {
    "NVIDIA H200, the default without a search": (H200 / "any_shape.json", H200 / "any_shape_seed1.json"),
    "Xeon with AMX, the default without a search": tuple(
        RESULTS / f"any_shape_x86_{name}.json" for name in ("f32_one_thread", "f32_two_threads", "bf16", "i8")
    ),
    "Xeon with AMX, after 20 seconds of search": tuple(
        RESULTS / f"any_shape_x86_{name}_20s.json" for name in ("f32", "bf16", "i8")
    ),
}


def _any_shape() -> Iterator[str]:
    yield "# Shapes drawn at random\n"
    yield (
        "GEMMs drawn from a seed: sizes from 1 to 16384, a third with rows that are not multiples of 16 bytes, a "
        "quarter batched, all layouts. Ratios are the fastest baseline's time over deepgen's.\n"
    )
    for title, files in ANY_SHAPE.items():
        yield f"## {title}\n"
        lines = []
        for file in files:
            content = json.loads(file.read_text())
            compared = [one for one in content["results"] if one["ratio"]]
            for dtype, over in dict.fromkeys((one["dtype"], one["over"]) for one in compared):
                ratios = sorted(float(one["ratio"]) for one in compared if (one["dtype"], one["over"]) == (dtype, over))
                least = ", ".join(f"{ratio:.2f}" for ratio in ratios[:3])
                mean = statistics.geometric_mean(ratios)
                run = f"[{content['conditions']['date'].partition(' ')[0]}](../../{file.relative_to(ROOT)})"
                lines.append([dtype, over, str(len(ratios)), f"{mean:.2f}", least, f"{ratios[-1]:.2f}", run])
        yield _table(["format", "compared with", "shapes", "mean", "slowest three", "fastest", "file"], lines)


def _kernelbench() -> Iterator[str]:
    content = json.loads((H200 / "kernelbench.json").read_text())
    every = content["results"]
    yield "# KernelBench's single operators\n"
    yield (
        "The 100 problems of level 1 of [KernelBench](https://github.com/ScalingIntelligence/KernelBench), unchanged, "
        f"on an NVIDIA H200, {content['conditions']['date']}. All are f32; nobody may round to tf32. Each result is "
        "compared with the problem's own module, on its inputs and on random ones. Caches are cold. The columns torch "
        "and torch.compile are their times over ours. The last two are shares: of the memory bandwidth, for the bytes "
        "that must be moved, and of the f32 units' peak; products count whole, even if only a triangle is kept.\n"
    )
    for budget in sorted({row["budget"] for row in every}):
        found = [row for row in every if row["budget"] == budget]
        right = [row for row in found if not row["failed"]]
        yield f"## {f'After {budget:g} seconds of search' if budget else 'The default, without a search'}\n"
        yield f"{len(found)} problems, {len(right)} served and right.\n"
        for way, name in BESIDE.items():
            ratios = [row["over"][way] for row in right if way in row["over"]]
            if ratios:
                ahead = sum(ratio > 1 for ratio in ratios)
                mean = statistics.geometric_mean(ratios)
                yield f"Over {name}: geometric mean {mean:.2f}, ahead in {ahead} of {len(ratios)}.\n"
        yield _table(["problem", "family", "ms", *BESIDE.values(), "bandwidth", "f32 units"], [*map(_problem, found)])


def _problem(row: dict[str, Any]) -> list[str]:
    name = row["problem"].strip("_").replace("_", " ").replace("  ", " ")
    if row["failed"]:
        return [name, row["failed"], *[""] * (3 + len(BESIDE))]
    ratios = [f"{row['over'][way]:.2f}" if way in row["over"] else "" for way in BESIDE]
    shares = [f"{row[what]:.0%}" for what in ("bandwidth", "arithmetic")]
    return [name, row["family"], f"{row['times']['deepgen'] * 1e3:.3f}", *ratios, *shares]


def _models() -> Iterator[str]:
    yield "# Whole models in torch\n"
    yield "Each way of running a model, and how much faster deepgen's library makes it, with a 99% interval.\n"
    for title, file in (
        ("A block like Llama's in bf16, NVIDIA H200", "llama_block"),
        ("The same block in 8-bit floats, NVIDIA H200", "llama_block_fp8"),
    ):
        content = json.loads((H200 / f"{file}.json").read_text())
        yield f"## {title}\n"
        yield f"Measured {content['conditions']['date']}.\n"
        yield from _model(content["results"]["blocks"])
    for title, content in json.loads((RESULTS / "bert_layer.json").read_text()).items():
        yield f"## A layer like BERT's in bf16, Xeon with AMX, {title}\n"
        yield f"Measured {content['conditions']['date']}.\n"
        yield from _model(content["results"]["layer"])


def _model(parts: dict[str, Any]) -> Iterator[str]:
    lines = []
    for part, runs in parts.items():
        for row in runs["rows"]:
            low, high = row["interval"]
            gain = "" if row["name"] == row["than"] else f"{row['faster']:.2f} ({low:.2f} to {high:.2f})"
            lines.append([part, row["name"], f"{row['seconds'] * 1e3:.3f}", gain, row["than"] if gain else ""])
    yield _table(["part", "run as", "ms", "times as fast", "as"], lines)


def _triton() -> Iterator[str]:
    yield "# Triton kernels\n"
    content = json.loads((H200 / "triton_kernels.json").read_text())
    yield "## Tuned by deepgen and by triton.autotune, NVIDIA H200\n"
    yield f"The same configs, measured {content['conditions']['date']}. Both winners are then timed in turns.\n"
    lines = []
    for one in content["kernels"]:
        ours, theirs = (one.get(side, {}).get("milliseconds") for side in ("ours", "theirs"))
        if ours and theirs:
            lines.append(
                [
                    one["problem"],
                    str(one["configs"]),
                    f"{ours * 1e3:.1f}",
                    f"{theirs * 1e3:.1f}",
                    speedup(theirs / ours),
                ]
            )
    yield _table(["kernel", "configs", "deepgen's winner, us", "Triton's, us", "deepgen's is"], lines)
    content = json.loads((RESULTS / "triton_cpu.json").read_text())
    yield "## On a processor\n"
    yield f"Two threads of a Xeon with AMX, measured {content['conditions']['date']}.\n"
    yield _table(
        ["kernel", "Triton on the CPU, ms", "compared with", "ms", "Triton on the CPU is"],
        [
            [one["case"], f"{one['ms']:.2f}", one["peer"], f"{one['peer_ms']:.2f}", speedup(one["ratio"])]
            for one in content["results"]
        ],
    )


def _shape(race: dict[str, Any]) -> str:
    o = race["operator"]
    return (f"{o['batch']} of " if o["batch"] > 1 else "") + f"{o['m']}x{o['n']}x{o['k']}"


def _ratio(race: dict[str, Any] | None) -> str:
    return "" if race is None else f"{race['ratio']:.2f}"


def _rivals(races: Any) -> list[str]:
    return sorted({name for race in races for name in race["contenders"]} - {"deepgen"})


def _us(race: dict[str, Any], name: str) -> str:
    seconds = race["contenders"].get(name, {}).get("seconds")
    return "" if not seconds else f"{seconds * 1e6:.1f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return "\n".join([row(head), row(["---"] * len(head)), *map(row, lines), ""])

"""The README's results: a table and a bar chart, made from the committed results of the benchmarks.

python benchmarks/readme_results.py            print the table
python benchmarks/readme_results.py --write    write the table into README.md and the charts to docs/results*.svg
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from deepgen.vocabulary import BadInput
from gemm_results import groups, read
from harness import H200 as H200_RESULTS
from harness import RESULTS, ROOT, parser, run_main

README = ROOT / "README.md"
CHARTS = {False: ROOT / "docs/results.svg", True: ROOT / "docs/results-dark.svg"}  # key: whether for dark pages
BEGIN, END = "<!-- results -->\n", "<!-- end -->"

H200 = "NVIDIA H200"
XEON = "Xeon with AMX, 1 core"
# The benchmarks shown for an H200: format and layout, and the file with the results.
ON_H200 = {
    "f32 nn": "simt_gemm",
    "tf32 nt": "gemm_tf32_nt",
    "bf16 nt": "gemm_bf16_nt",
    "f16 nt": "gemm_f16_nt",
    "f8e4m3 nt, f32 accumulation": "gemm_f8e4m3_nt_exact",
    "i8 nt": "gemm_i8_nt",
}
# And those for x86: dtype, instruction set and the library that torch calls. One thread, cold caches, layout nn.
ON_X86 = (("f32", "avx512", "MKL, OpenBLAS"), ("bf16", "amx", "oneDNN"), ("i8", "amx", "oneDNN"))


@dataclass(frozen=True)
class Row:
    """Speedups over a library, one for each shape."""

    hardware: str
    what: str
    library: str
    ratios: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.geometric_mean(self.ratios)


def rows() -> list[Row]:
    """All rows that the README shows, from the result files."""
    out = []
    for what, file in ON_H200.items():
        raced = read(H200_RESULTS / f"{file}.json")
        out.append(Row(H200, f"GEMM {what}", "cuBLASLt", tuple(float(race["ratio"]) for race in raced)))
    on_x86 = groups(read(RESULTS / "cpu_gemm.json"))
    for dtype, isa, library in ON_X86:
        results = [
            race
            for group, races in on_x86.items()
            if (group.dtype, group.isa, group.layout, group.threads, group.caches) == (dtype, isa, "nn", 1, "cold")
            and not group.batched
            and not group.constant_b
            for race in races
        ]
        out.append(Row(XEON, f"GEMM {dtype} nn", library, tuple(float(race["ratio"]) for race in results)))
    return out


def table(results: Sequence[Row]) -> str:
    """Markdown with speedups as percentages."""
    lines = ["| hardware | operator | library | shapes | mean | slowest shape | fastest shape |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in results:
        cells = [row.hardware, row.what, row.library, str(len(row.ratios)), f"**{speedup(row.mean)}**"]
        lines.append("| " + " | ".join([*cells, speedup(min(row.ratios)), speedup(max(row.ratios))]) + " |")
    return "\n".join(lines) + "\n"


def speedup(ratio: float) -> str:
    """A ratio of times, the library's over ours, in words."""
    if ratio >= 2:
        return f"{ratio:.1f} times as fast"
    percent = round(100 * (ratio - 1))
    if percent == 0:
        return "equal"
    return f"{abs(percent)}% {'faster' if percent > 0 else 'slower'}"


def chart(results: Sequence[Row], dark: bool = False) -> str:
    """A bar for each mean, a thin line from the slowest to the fastest shape. Longer lines are cut, with an arrow."""
    ink, faint, lines, page = (
        ("#e6edf3", "#9198a1", "#3d444d", "#0d1117") if dark else ("#1f2328", "#59636e", "#d1d9e0", "#fff")
    )
    left, right, top, step = 290, 700, 64, 30
    low, high = 0.8, 2.0
    height = top + step * len(results) + 40

    def x(ratio: float) -> float:
        return left + (right - left) * (min(ratio, high) - low) / (high - low)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13"'
        f' width="900" height="{height}">',
        f'<rect width="900" height="{height}" fill="{page}"/>',
        f'<text x="16" y="24" font-size="16" font-weight="bold" fill="{ink}">'
        "Speed relative to the vendor's library (1.0 = equal)</text>",
        f'<text x="16" y="44" fill="{faint}">'
        "Bar: geometric mean over shapes. Line: slowest to fastest shape (cut at 2.0).</text>",
    ]
    ticks = [low + 0.2 * i for i in range(round((high - low) / 0.2) + 1)]
    for tick in ticks:
        bold = abs(tick - 1) < 1e-9
        line = f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{height - 36}"'
        parts.append(f'{line} stroke="{ink if bold else lines}" stroke-width="{1.5 if bold else 1}"/>')
        label = f'<text x="{x(tick):.1f}" y="{height - 18}" text-anchor="middle" fill="{faint}">'
        parts.append(f"{label}{tick:.1f}</text>")
    for number, row in enumerate(results):
        y = top + step * number + step / 2
        color = "#2da44e" if row.hardware == H200 else "#0969da"
        begin, end = sorted((x(1.0), x(row.mean)))
        parts.append(f'<text x="16" y="{y + 4:.1f}" fill="{ink}">{escape(row.what)}</text>')
        bar = f'<rect x="{begin:.1f}" y="{y - 8:.1f}" width="{end - begin:.1f}" height="16" fill="{color}"'
        parts.append(f"{bar}/>")
        least, most = x(min(row.ratios)), x(max(row.ratios))
        parts.append(f'<line x1="{least:.1f}" x2="{most:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{ink}"/>')
        if max(row.ratios) > high:
            parts.append(f'<path d="M{most:.1f} {y - 4:.1f} l8 4 l-8 4 z" fill="{ink}"/>')
        note = f"{row.mean:.2f}, {row.library}"
        parts.append(f'<text x="{right + 16}" y="{y + 4:.1f}" fill="{ink}">{escape(note)}</text>')
    for number, (name, color) in enumerate(((H200, "#2da44e"), (XEON, "#0969da"))):
        parts.append(f'<rect x="{560 + 130 * number}" y="14" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{578 + 130 * number}" y="24" fill="{ink}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def written(page: str, text: str, mark: str = BEGIN) -> str:
    """The page with `text` between the mark and the following end mark."""
    head, begin, rest = page.partition(mark)
    if not begin or END not in rest:
        raise BadInput(f"{README.name} has no place for this", allowed=f"{mark.strip()} and {END}")
    return head + begin + text + rest[rest.index(END) :]


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--write", action="store_true", help="write README.md and docs/results*.svg")
    results = rows()
    if words.options().write:
        README.write_text(written(README.read_text(), table(results)))
        for dark, path in CHARTS.items():
            path.write_text(chart(results, dark))
    else:
        print(table(results), end="")


if __name__ == "__main__":
    run_main(main)

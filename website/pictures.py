"""The pictures of the gallery: actual runs of the examples on this machine's CPU, drawn as small SVG files.

python website/pictures.py [NAME ...]       run these, or all; needs a quiet machine and some minutes
python website/pictures.py report STUDY    the top of a study's report, in light and dark, as docs/pictures/report*.png
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt

import deepgen as dg
from deepgen.report import charts

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/pictures/gallery"
EXAMPLES = ROOT / "examples"
GREY, BLUE = "#808080", "#2F8FD0"  # visible on light and dark pages


def tuned() -> Any:
    study = dg.tune(dg.gemm(192, 256, 128, layout="nt"), target="cpu", trials=60, threads=1, baselines=False)
    return study.plot.history()


def own_c_kernel() -> Any:
    kernel = runpy.run_path(str(EXAMPLES / "kernels/jacobi_c.py"))["kernel"]
    study = dg.tune(kernel, target="cpu", trials=16, strategy="exhaustive", threads=1, baselines=False)
    return study.plot.heatmap("ROWS", "COLS")


def own_operator() -> Any:
    import own_operator as own

    study = dg.tune(own.VectorAdd(1 << 16), target="cpu", generator=own.VectorAddFamily(), trials=24)
    return study.plot.verdicts() if len(study.top(24)) < 4 else study.plot.history()


def triton() -> Any:
    kernel = runpy.run_path(str(EXAMPLES / "triton/matmul.py"))["kernel"]
    study = dg.tune(kernel.operator(M=256, N=256, K=256), target="cpu", trials=36, strategy="random", baselines=False)
    return study.plot.heatmap("BLOCK_M", "BLOCK_N")


def expression() -> Any:
    import fused_layer

    return fused_layer.main(trials=40).plot.heatmap()


def convolution() -> Any:
    operator = dg.conv2d(1, 28, 28, 32, 32, 3, pad=1)
    study = dg.tune(operator, target="cpu", trials=30, strategy="random", threads=1, baselines=False)
    return study.plot.roofline()


def space() -> Any:
    """The valid configs of examples/own_space.py, counted by block sizes."""
    space = dg.Space("tiles")
    m, n = (space.knob(name, [16, 32, 64, 128, 256]) for name in ("BLOCK_M", "BLOCK_N"))
    k, stages = space.knob("BLOCK_K", [8, 16, 32, 64]), space.knob("STAGES", [1, 2, 3, 4])
    shared = space.derive("shared_bytes", (m + n) * k * stages * 4)
    space.require(shared <= 48 * 1024, "tiles fit in shared memory")
    space.require((m <= 2 * n) & (n <= 2 * m), "tiles are nearly square")
    counts: dict[tuple[int, int], int] = {}
    for config in space:
        pair = (config["BLOCK_M"], config["BLOCK_N"])
        counts[pair] = counts.get(pair, 0) + 1
    rows = [{"BLOCK_M": m, "BLOCK_N": n, "valid configs": count} for (m, n), count in counts.items()]
    data = alt.Chart(alt.Data(values=rows), width=420, height=260)
    return data.mark_rect().encode(x="BLOCK_M:O", y="BLOCK_N:O", color="valid configs:Q")


def against() -> Any:
    """The comparison from the recorded demo."""
    recorded = json.loads((ROOT / "benchmarks/results/readme_terminal.json").read_text())
    default = recorded["over_default"]["ratio"]
    rows = [{"name": "the default config", "times as fast": default}]
    rows += [{"name": name, "times as fast": ratio} for name, ratio in recorded["baselines"].items()]
    bars = alt.Chart(alt.Data(values=rows), width=420, height=140).encode(
        x=alt.X("times as fast:Q", title="the winner is this many times as fast"),
        y=alt.Y("name:N", title=None, sort="x"),
    )
    figures = bars.mark_text(align="left", dx=4, color=GREY).encode(text=alt.Text("times as fast:Q", format=".2f"))
    return bars.mark_bar() + figures


PICTURES: dict[str, Callable[[], Any]] = {
    "against": against,
    "tuned": tuned,
    "own-c-kernel": own_c_kernel,
    "own-operator": own_operator,
    "triton": triton,
    "expression": expression,
    "convolution": convolution,
    "space": space,
}


def draw(chart: Any) -> str:
    """The chart as an SVG that adapts to the page: without a background, with text and lines in grey."""
    lines = {"labelColor": GREY, "titleColor": GREY, "domainColor": GREY, "tickColor": GREY, "gridColor": f"{GREY}40"}
    config = {
        "background": "transparent",
        "padding": {
            "left": 24,
            "top": 8,
            "right": 48,
            "bottom": 8,
        },  # for browsers whose fonts are wider
        "text": {"color": GREY},
        "view": {"stroke": None},
        "axis": lines,
        "legend": {"labelColor": GREY, "titleColor": GREY},
        "title": {"color": GREY},
        "font": "sans-serif",
    }
    spec = chart.to_dict()
    spec["config"] = {**spec.get("config", {}), **config}
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec)
    shorter = re.compile(r"(?<=\d\.\d)\d+")  # a tenth of a pixel is enough
    svg = re.sub(r"<[^>]+>", lambda tag: shorter.sub("", tag[0]), svg)
    svg = svg.replace("#0072B2", BLUE)
    return re.sub(r'opacity="0\.[56]"', 'opacity="1"', svg) + "\n"  # faint points are invisible on a dark page


def report(study: str) -> None:
    """Screenshots of a report in a browser: the top, including the first chart."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page_file = Path(folder, "report.html")
        subprocess.run([sys.executable, "-m", "deepgen", "report", study, "-o", str(page_file)], check=True)
        program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            page = browser.new_page(viewport={"width": 1000, "height": 1100}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.wait_for_timeout(2000)  # charts are drawn when they scroll into view
            page.screenshot(path=str(ROOT / "docs/pictures" / name))
        browser.close()


def main() -> None:
    charts.check_libraries()
    if sys.argv[1:2] == ["report"]:
        report(sys.argv[2])
        return
    sys.path.insert(0, str(EXAMPLES))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            path = FOLDER / f"{name}.svg"
            path.write_text(draw(PICTURES[name]()))
            os.chdir(ROOT)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""What pages say of benchmarks: every path that they name exists, and the list of benchmarks has all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PATH = re.compile(r"benchmarks/[\w*./-]*[\w*]")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HELD_BY = re.compile(r"^if __name__ == \"__main__\":$", re.MULTILINE)


def test_every_path_that_a_page_names_is_there() -> None:
    named = {(page.name, path) for page in PAGES for path in PATH.findall(page.read_text(encoding="utf-8"))}
    assert ("README.md", "benchmarks/readme_results.py") in named
    assert not [f"{page}: {path}" for page, path in sorted(named) if not any(ROOT.glob(path))]


def test_all_benchmarks_are_listed_with_what_they_answer() -> None:
    listed = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ")}
    programs = {file.stem for file in BENCHMARKS.glob("[!_]*.py") if HELD_BY.search(file.read_text(encoding="utf-8"))}
    assert names == programs
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in listed.stdout.splitlines() if line.startswith("  "))


def test_a_benchmark_runs_by_its_name() -> None:
    words = [sys.executable, "-m", "benchmarks", "readme_results"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "| NVIDIA H200 | GEMM bf16 nt | cuBLASLt | 26 |" in shown
    other = subprocess.run([*words[:3], "no_such"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert other.returncode == 1 and "there is no benchmark" in other.stderr


def test_files_are_small() -> None:
    sizes = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in BENCHMARKS.rglob("*.py")}
    assert not {name: size for name, size in sizes.items() if size > 400}

"""The scripts of examples/kernel_tuner with Kernel Tuner and with deepgen: do their results have the same keys?

    python -m venv /tmp/tuner && /tmp/tuner/bin/pip install kernel-tuner
    python tests/deepgen_formats/kernel_tuner_keys.py --python /tmp/tuner/bin/python --out keys.json

`--golden` writes the file that tests compare with. Kernel Tuner and what it needs take about half a gigabyte, so tests
do not install it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((REPO / "examples" / "kernel_tuner").glob("*.py"))
GOLDEN = REPO / "tests" / "golden" / "kernel_tuner" / "keys.json"
IMPORT = "from kernel_tuner import"
# What a run prints about a script, with either tool. Versions of compilers depend on the machine.
REPORT = """
import json, runpy, sys, warnings
warnings.simplefilter("ignore")
held = runpy.run_path(sys.argv[1])
keys = sorted({key for row in held["results"] for key in row})
env = sorted(key for key in held["env"] if not key.endswith("Version"))
best = min(row["time"] for row in held["results"])
print(json.dumps({"results": keys, "env": env, "configs": len(held["results"]), "milliseconds": best}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has Kernel Tuner")
    parser.add_argument("--out", type=Path, help="write what was found to this JSON file")
    parser.add_argument("--golden", action="store_true", help=f"write Kernel Tuner's keys to {GOLDEN}")
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for script in SCRIPTS:
        theirs = run(given.python, script)
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder) / script.name
            changed.write_text(script.read_text().replace(IMPORT, "from deepgen_formats.kernel_tuner import"))
            ours = run(sys.executable, changed)
        found[script.stem] = {"kernel_tuner": theirs, "deepgen": ours}
    print(f"{'script':<12} {'keys of results':<16} {'keys of env':<20} {'configs':>16} {'best, ms':>18}")
    for name, two in found.items():
        theirs, ours = two["kernel_tuner"], two["deepgen"]
        same = "same" if theirs["results"] == ours["results"] else "differ"
        more = sorted(set(ours["env"]) - set(theirs["env"]))
        less = sorted(set(theirs["env"]) - set(ours["env"]))
        env = " ".join([*(f"+{key}" for key in more), *(f"-{key}" for key in less)]) or "same"
        configs = f"{theirs['configs']} and {ours['configs']}"
        best = f"{theirs['milliseconds']:.3f} and {ours['milliseconds']:.3f}"
        print(f"{name:<12} {same:<16} {env:<20} {configs:>16} {best:>18}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if given.golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        keys = {name: {part: two["kernel_tuner"][part] for part in ("results", "env")} for name, two in found.items()}
        GOLDEN.write_text(json.dumps(keys, indent=1) + "\n")


def run(python: str, script: Path) -> dict[str, Any]:
    done = subprocess.run([python, "-c", REPORT, str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} {script} failed:\n{done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()

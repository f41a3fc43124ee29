"""The core alone, in an environment without extras: what works there, and which commands name the extra they need.

`make bare` runs it, and so does CI. It is not a pytest test, as that environment has no pytest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

FOREIGN = ("torch", "altair", "jinja2", "starlette", "ray", "triton", "jax", "pandas", "zstandard", "pytest")
OWN = """
import deepgen as dg
kernel = dg.kernel(
    "void twice(float *y, const float *x, int n) { for (int i = 0; i < n; i += 1) y[i] = (STEP - STEP + 2) * x[i]; }",
    entry="twice", language="c", sizes={"n": 64}, knobs={"STEP": [1, 2]}, reference=lambda x: 2 * x,
    arguments=[dg.output("y", ("n",), "f32"), dg.input("x", ("n",), "f32"), dg.scalar("n", "i32")],
    baseline=lambda x: x + x,
)
"""
CALL = """
import numpy as np
import deepgen as dg
kernel = dg.Study.open(%r).best().load()
a = np.ones((32, 32), np.float32)
assert (kernel(a, a) == 32).all()
"""
WORKS = (
    "--version",
    "doctor",
    "tune gemm MNK=32 --trials 2 --keep-top 1 --target cpu --out studies",
    "tune own.py --trials 2 --out own",
    "resume STUDY --trials 3",
    "status STUDY",
    "top STUDY",
    "show STUDY",
    "report STUDY --markdown",
    "space gemm MNK=64",
    "library add STUDY --noisy",
    "library list",
    "bundle pack gemm MNK=48 --trials 2 -o b.tar.gz",
)
# Each command, and the extra that its message must name.
NEEDS = {
    "report STUDY": "[view]",
    "serve STUDY --port 0": "[view]",
    "bench model.py": "[torch]",
    "bundle pack gemm MNK=48 --trials 3 -o b.tar.zst": "zstandard",
    "tune gemm MNK=32 --engine ray": "[cluster]",
}
IMPORTS = {"deepgen.torch": "[torch]", "deepgen.jax": "[jax]", "deepgen.triton_cpu": "[triton]"}


def main() -> int:
    installed = {dist.metadata["Name"].lower() for dist in metadata.distributions()}
    problems = [f"{name} is installed here: this shows nothing" for name in FOREIGN if name in installed]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.py").write_text(OWN)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)

        def command(text: str) -> subprocess.CompletedProcess[str]:
            study = next(iter((Path(folder) / "studies").glob("*")), Path("none"))
            return run("-m", "deepgen", *(str(study) if word == "STUDY" else word for word in text.split()))

        for text in WORKS:
            done = command(text)
            if done.returncode != 0 or "Traceback" in done.stderr:
                problems.append(f"deepgen {text}: {done.stderr[-1000:]}")
        study = next((Path(folder) / "studies").glob("*"))
        if (done := run("-c", CALL % str(study))).returncode != 0:
            problems.append(f"a call of the winner: {done.stderr[-1000:]}")
        for text, extra in NEEDS.items():
            done = command(text)
            if done.returncode == 0 or extra not in done.stderr or "Traceback" in done.stderr:
                problems.append(f"deepgen {text} does not name {extra}: {done.stderr[-1000:]}")
        for module, extra in IMPORTS.items():
            done = run("-c", f"import {module}")
            if done.returncode == 0 or extra not in done.stderr:
                problems.append(f"import {module} does not name {extra}: {done.stderr[-1000:]}")
    checked = len(WORKS) + len(NEEDS) + len(IMPORTS) + 1
    print("\n".join(problems) or f"{checked} of the core's doors open, or say which extra they need")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

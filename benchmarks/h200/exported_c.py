"""Kernels of a library called from a C program on the GPU, beside the same kernels called from Python.

    python benchmarks/h200/exported_c.py --library build/llama/library --json benchmarks/h200/exported_c.json

The library is exported, and a C program is built with it that knows no Python: it takes memory by the driver's API,
reads random inputs, calls, and writes the result, which is compared with torch's product in f32. Then both call the
same kernel in a loop on the same sizes, and take turns. Bar: C is as fast as Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import torch  # noqa: E402

import deepgen as dg  # noqa: E402
from common import run_main, save  # noqa: E402
from deepgen.libraries.c.export import Exported, export  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

TURNS, CALLS = 7, 400
BAR = 1.03  # of Python's time
_PROGRAM = """
#include <deepgen_kernels.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long address;

static void *found(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *out = driver ? dlsym(driver, name) : 0;
    if (!out) printf("no %s", name), exit(1);
    return out;
}
#define DRIVER(name, ...) \\
    do { \\
        int code = ((int (*)())found(#name))(__VA_ARGS__); \\
        if (code) return printf("%s: error %d", #name, code), 1; \\
    } while (0)
#define SERVED(call) \\
    do { \\
        if (call) return puts(deepgen_last_error()), 1; \\
    } while (0)

static void *read_file(const char *path, size_t bytes) {
    void *out = malloc(bytes);
    FILE *file = fopen(path, "rb");
    if (!file || fread(out, 1, bytes, file) != bytes) printf("cannot read %s", path), exit(1);
    fclose(file);
    return out;
}

int main(int count, char **given) {
    int64_t m = atoll(given[1]), n = atoll(given[2]), k = atoll(given[3]), calls = atoll(given[4]);
    size_t sizes[] = {2 * (size_t)(m * k), 2 * (size_t)(n * k), 2 * (size_t)(m * n), 0};
    int device;
    void *context, *first, *last;
    DRIVER(cuInit, 0);
    DRIVER(cuDeviceGet, &device, 0);
    DRIVER(cuDevicePrimaryCtxRetain, &context, device);
    DRIVER(cuCtxSetCurrent, context);
    SERVED(deepgen_gemm_bf16_nt_cuda_workspace(m, n, k, &sizes[3]));
    address at[4] = {0};
    for (int i = 0; i < 4; i++)
        if (sizes[i]) DRIVER(cuMemAlloc_v2, &at[i], sizes[i]);
    for (int i = 0; i < 2; i++) DRIVER(cuMemcpyHtoD_v2, at[i], read_file(i ? "b.bin" : "a.bin", sizes[i]), sizes[i]);
    void *a = (void *)at[0], *b = (void *)at[1], *made = (void *)at[2], *workspace = (void *)at[3];
#define CALL SERVED(deepgen_gemm_bf16_nt_cuda(m, n, k, a, k, b, k, made, n, workspace, sizes[3], 0))
    CALL;
    void *c = malloc(sizes[2]);
    DRIVER(cuMemcpyDtoH_v2, c, at[2], sizes[2]);
    FILE *file = fopen("c.bin", "wb");
    if (!file || fwrite(c, 1, sizes[2], file) != sizes[2] || fclose(file)) return puts("cannot write c.bin"), 1;
    DRIVER(cuEventCreate, &first, 0);
    DRIVER(cuEventCreate, &last, 0);
    for (int64_t i = 0; i < calls / 10; i++) CALL;
    DRIVER(cuEventRecord, first, (void *)0);
    for (int64_t i = 0; i < calls; i++) CALL;
    DRIVER(cuEventRecord, last, (void *)0);
    DRIVER(cuEventSynchronize, last);
    float ms;
    DRIVER(cuEventElapsedTime, &ms, first, last);
    printf("%.9g", ms / 1e3 / (double)calls);
    return 0;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True, help="with products in bf16, layout nt")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    library = dg.library(given.library, trust=True)
    operators = {entry.operator for entry in library.list() if isinstance(entry.operator, Gemm)}
    plain = sorted(
        (op for op in operators if op == dg.gemm(op.m, op.n, op.k, dtype="bf16", layout="nt")), key=lambda op: op.m
    )
    if not plain:
        raise DeepgenError(f"{given.library} has no products in bf16 with layout nt")
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        exported = export(library, folder / "exported")
        program = _built(exported, folder)
        for operator in plain:
            if (choice := library.choose(operator, "cuda:native")).entry is None:
                print(f"{operator.describe()}: {choice.reason}", flush=True)
                continue
            rows.append(_race(library, operator, program, folder))
            row = rows[-1]
            name, c, python = "x".join(map(str, row["shape"])), row["c"] * 1e6, row["python"] * 1e6
            print(f"{name:>16}: C {c:8.2f} us, Python {python:8.2f} us, ratio {row['ratio']:.3f}", end="", flush=True)
            print(f", largest error {row['error']:.1e}, the same bits: {row['same']}", flush=True)
    if given.json is not None:
        save(given.json, {"rows": rows, "skipped": dict(exported.skipped)}, device=torch.cuda.get_device_name())
    if any(row["ratio"] > BAR for row in rows):
        raise DeepgenError(f"a call from C takes more than {BAR} of one from Python")


def _race(library: Any, operator: Gemm, program: Path, folder: Path) -> dict[str, Any]:
    kernel = library.choose(operator, "cuda:native").load()
    torch.manual_seed(0)
    a = torch.randn(operator.m, operator.k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(operator.n, operator.k, device="cuda", dtype=torch.bfloat16)
    for name, tensor in (("a", a), ("b", b)):
        (folder / f"{name}.bin").write_bytes(tensor.cpu().view(torch.uint8).numpy().tobytes())
    mine = kernel(a, b)
    right = a.float() @ b.float().t()
    c, python = [], []
    for _ in range(TURNS):
        command = [str(program), *map(str, (operator.m, operator.n, operator.k, CALLS))]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeepgenError(f"the C program failed: {done.stdout or done.stderr or done.returncode}")
        c.append(float(done.stdout))
        python.append(_timed(lambda: kernel(a, b, out=mine)))
    made = torch.frombuffer(bytearray((folder / "c.bin").read_bytes()), dtype=torch.bfloat16).view(mine.shape).cuda()
    error = ((made.float() - right).abs().max() / right.abs().max()).item()
    if not error < 1e-2:
        raise DeepgenError(f"{operator.describe()}: the C program's result is wrong by {error:.1e}")
    return {
        "shape": [operator.m, operator.n, operator.k],
        "c": median(c),
        "python": median(python),
        "ratio": median(one / other for one, other in zip(c, python, strict=True)),
        "error": error,
        "same": bool(torch.equal(made, mine)),
    }


def _timed(call: Any) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(CALLS // 10):
        call()
    first.record()
    for _ in range(CALLS):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / CALLS


def _built(exported: Exported, folder: Path) -> Path:
    (folder / "calls.c").write_text(_PROGRAM)
    where = exported.folder
    command = ["cc", "-O2", "-w", "calls.c", "-o", "calls", f"-I{where / 'include'}", f"-L{where / 'lib'}"]
    command += [f"-l{exported.name}", f"-Wl,-rpath,{where / 'lib'}", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "calls"


if __name__ == "__main__":
    run_main(main)

"""Models of kernel families in C return the same times as in Python, to the last bit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels import Modelled
from deepgen.libraries import Entry, Timed
from deepgen.libraries.c import models

SIZES = ("M", "N", "K")
FAMILIES = (
    ("c_gemm", "arm:neon", dg.gemm(512, 512, 512)),
    ("x86_gemm", "x86:avx512", dg.gemm(512, 512, 512)),
    ("x86_gemm", "x86:avx512", dg.gemm(4, 512, 512, layout="nt")),
    ("x86_amx_gemm", "x86:amx", dg.gemm(512, 512, 512, dtype="bf16", layout="nt")),
    ("x86_vector_dot_gemm", "x86:amx", dg.gemm(300, 512, 512, dtype="i8")),
    ("sm90_gemm", "cuda:sm_90a", dg.gemm(1024, 1024, 1024, dtype="bf16", layout="nt")),
    ("sm90_gemm", "cuda:sm_90a", dg.gemm(128, 128, 16384, dtype="bf16", layout="nt")),
    ("skinny_gemm", "cuda:sm_90a", dg.gemm(16, 4096, 4096, dtype="bf16", layout="nt")),
    ("mma_gemm", "cuda:sm_80", dg.gemm(128, 128, 4096, dtype="bf16", layout="nt")),
    ("simt_gemm", "hip:gfx90a", dg.gemm(128, 128, 4096)),
)


def entry_of(family: str, target: str, operator: dg.Gemm) -> Entry:
    where = targets.resolve(target)
    made = generators.by_name(family).default(operator, where)
    timed = (Timed(operator, 1.0, (1.0, 1.0), {}),)
    return Entry(where, True, None, True, family, made, "", "", (), timed, None, None, {})


def test_all_families_tell_the_same_times(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    entries = [entry_of(*case) for case in FAMILIES]
    texts = [models.model_text(entry, SIZES, f"model_{place}") for place, entry in enumerate(entries)]
    assert all(texts), "each of them has a form in C"
    source = "\n".join(["#include <math.h>", "#include <stdint.h>", *map(str, texts)]).replace(
        "static double", "double"
    )
    (tmp_path / "models.c").write_text(source)
    command = ["gcc", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "models.c", "-o", "models.so", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    built = ctypes.CDLL(str(tmp_path / "models.so"))
    shapes = np.exp(np.random.default_rng(0).uniform(0, np.log(20_000), (300, 3))).astype(np.int64)
    for place, entry in enumerate(entries):
        function = built[f"model_{place}"]
        function.restype = ctypes.c_double
        family = generators.by_name(entry.family)
        assert isinstance(family, Modelled)
        for m, n, k in shapes.tolist():
            operator = entry.operator.resized({**entry.operator.sizes(), "M": m, "N": n, "K": k}, {}, {})
            told = family.modelled_seconds(operator, entry.target, entry.config)
            found = function((ctypes.c_int64 * 3)(m, n, k))
            np.testing.assert_equal(found, np.nan if told is None else told, err_msg=f"{entry.family} at {m}x{n}x{k}")


def test_families_without_a_model_have_none_in_c() -> None:
    softmax = Timed(dg.softmax(8, 8), 1.0, (1.0, 1.0), {})
    where = targets.resolve("arm:neon")
    entry = Entry(where, True, None, True, "c_softmax", {}, "", "", (), (softmax,), None, None, {})
    assert models.model_text(entry, ("rows", "cols"), "f") is None

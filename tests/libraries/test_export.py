"""Exported libraries: C and C++ programs are built with them in an empty folder, and a wheel needs no compiler."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import build_driver, image, kernel

import deepgen as dg
from deepgen import targets
from deepgen.frontends.cli.main import main
from deepgen.libraries import Entry, Library, Timed
from deepgen.libraries.c import export
from deepgen.libraries.c.functions import argument, functions_of, in_c
from deepgen.libraries.entry import Times
from deepgen.space import parse
from deepgen.targets import host
from deepgen.tuning import Study
from deepgen.tuning.study.winner import sha256
from deepgen.vocabulary import (
    Artifact,
    BadInput,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
)

HERE = Path(__file__).parent
CMAKE = """cmake_minimum_required(VERSION 3.13)
project(app LANGUAGES C CXX)
find_package(deepgen_kernels 0.1 REQUIRED)
add_executable(app use_library.cpp)
target_link_libraries(app PRIVATE deepgen_kernels::deepgen_kernels m)
"""
SAID = (
    "n is negative; a is null; 0 bytes of workspace are given, and",
    "deepgen_gemm_f32_nn: its tensors must be dense on processors; "
    "deepgen_gemm_f32_nn: no kernel of a shape near this one serves it here; ",
    "no kernel serves this call, or a vendor's library is expected to be faster",
)


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(command: Sequence[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def exported(filled: Path, tuned: list[Study], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder that was moved after it was written."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tuned[0].folder.parents[1] / "config"))
        export(dg.library(filled), folder / "first")
    return (folder / "first").rename(folder / "moved")


@pytest.mark.slow
def test_a_c_program_by_pkg_config(exported: Path, tmp_path: Path) -> None:
    needed("gcc", "pkg-config")
    flags = run(
        ["pkg-config", "--cflags", "--libs", "deepgen_kernels"],
        tmp_path,
        PKG_CONFIG_PATH=str(exported / "lib" / "pkgconfig"),
    ).split()
    for program in ("use_library", "threads", "lent_threads"):
        source = str(HERE / f"{program}.c")
        run(["gcc", "-Wall", "-Werror", source, "-o", program, *flags, "-lm", "-lpthread"], tmp_path)
    said = run(["./use_library"], tmp_path, LD_LIBRARY_PATH=str(exported / "lib"))
    assert all(words in said for words in SAID), said
    for program in ("./threads", "./lent_threads"):
        run([program], tmp_path, LD_LIBRARY_PATH=str(exported / "lib"))


def test_a_cpp_program_by_cmake(exported: Path, tmp_path: Path) -> None:
    needed("cmake", "g++")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    shutil.copyfile(HERE / "use_library.c", tmp_path / "use_library.cpp")
    run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={exported}"], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert SAID[-1] in run(["build/app"], tmp_path)


def test_the_library_is_built_again_from_its_sources(exported: Path, tmp_path: Path) -> None:
    needed("cmake", "gcc")
    run(["cmake", "-S", str(exported), "-B", "build", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'prefix'}"], tmp_path)
    run(["cmake", "--build", "build", "--target", "install"], tmp_path)
    found = ctypes.CDLL(str(tmp_path / "prefix" / "lib" / "libdeepgen_kernels.so.1"))
    assert found.deepgen_abi_version() == 1


def test_a_processor_without_the_instructions_is_told(library: Library, tmp_path: Path) -> None:
    made = export(library, tmp_path / "out")
    source = next((made.folder / "src").glob("*_cpu.c"))
    source.write_text(re.sub(r"\.features = \(const char \*const\[\]\){", r'\g<0>"made_up_isa", ', source.read_text()))
    flags = ["-shared", "-fPIC", "-Iinclude", "-Isrc", "-std=gnu11"]
    run(["gcc", *flags, "-o", str(made.library), f"src/{source.name}", "-ldl", "-lm"], made.folder)
    found = ctypes.CDLL(str(made.library))
    found.deepgen_last_error.restype = ctypes.c_char_p
    x = np.zeros((24, 40), np.float32)
    at, wide = ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(40)
    code = found.deepgen_softmax_f32(ctypes.c_int64(24), wide, at, wide, at, wide, None, ctypes.c_size_t(0))
    assert code == 1 and found.deepgen_last_error() == b"deepgen_softmax_f32: this processor has no made_up_isa"


@pytest.mark.slow
def test_a_wheel_is_installed_without_a_compiler(library: Library, tmp_path: Path) -> None:
    where = ["--library", str(library.folder), "--name", "tuned"]
    assert main(["library", "export", "--wheel", str(tmp_path / "dist"), *where]) == 0
    [wheel] = (tmp_path / "dist").iterdir()
    venv.create(tmp_path / "clean", with_pip=False)
    python = str(tmp_path / "clean" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run([*install, "--disable-pip-version-check", str(wheel)], tmp_path)
    program = """
import numpy as np, tuned
a, b = (np.arange(n, dtype=np.float32).reshape(s) % 7 for n, s in ((50 * 33, (50, 33)), (33 * 60, (33, 60))))
assert (tuned.gemm_f32_nn(a, b) == a @ b).all()
out = np.empty((50, 60), np.float32)
assert tuned.gemm_f32_nn(a, b, out=out) is out and (out == a @ b).all()
assert abs(tuned.softmax_f32(a[:24]).sum(1) - 1).max() < 1e-5
for wrong in ((a, b[:3]), (a.astype(np.float64), b), (a, np.asfortranarray(b)), (a,)):
    try:
        tuned.gemm_f32_nn(*wrong)
    except (TypeError, ValueError) as error:
        print(error)
out.flags.writeable, square = False, np.ones((48, 48), np.float32)
apart, empty = np.ones((48, 64), np.float32)[:, :48], np.ones((48, 0), np.float32)
for arrays, result in (((a, b), out), ((square, square), square), ((apart, square), None), ((empty, empty.T), None)):
    try:
        tuned.gemm_f32_nn(*arrays, out=result)
    except ValueError as error:
        print(error)
"""
    site = Path(np.__file__).parents[1]
    alone = tmp_path / "numpy_only"  # nothing else of this environment, in particular not deepgen
    alone.mkdir()
    for part in site.glob("numpy*"):
        (alone / part.name).symlink_to(part)
    said = run([python, "-c", program], tmp_path, PYTHONPATH=str(alone), PATH="/nonexistent").splitlines()
    assert [line.split()[0] for line in said[:4]] == ["B", "A", "B", "gemm_f32_nn"], said
    assert said[4:] == [
        "C is read-only",
        "C overlaps an input array: pass a separate one",
        "deepgen_gemm_f32_nn: its tensors must be dense on processors",
        "a has no elements",
    ]


FIXED = """
#include <deepgen_kernels.h>
#include <stdio.h>

int main(void) {
    float x[12], out[2], out3[3];
    char scratch[4096];
    size_t bytes;
    for (int i = 0; i < 12; i++) x[i] = (float)i;
    if (deepgen_mean_f32_workspace(2, 6, &bytes) || deepgen_mean_f32(2, 6, x, out, 0, 0) || out[1] != 8.5f) return 1;
    if (deepgen_mean_f32_served(1, 8) || deepgen_mean_f32(1, 8, x, out, 0, 0) || out[0] != 3.5f) return 2;
    if (deepgen_mean_f32_served(2, 5) != DEEPGEN_NOT_SERVED) return 3;
    if (deepgen_conv1d_f32(1, 4, 1, 1, 2, 1, 0, 1, 1, x, x + 4, out3, scratch, sizeof scratch)) return 5;
    if (out3[2] != 23) return 5;
    if (deepgen_conv1d_f32_served(1, 4, 1, 1, 2, 1, 1, 1, 1) != DEEPGEN_NOT_SERVED) return 6;  // with padding
    if (deepgen_doubled_workspace(&bytes) || deepgen_doubled(x, out, 0, 0) || out[1] != 2) return 4;
    return deepgen_doubled_served();
}
"""


@pytest.mark.slow
def test_kernels_of_fixed_shapes_are_one_function(expressed_ones: Path, tmp_path: Path) -> None:
    """Expressions have constant shapes, and may have no sizes at all."""
    needed("gcc")
    made = export(dg.library(expressed_ones), tmp_path / "exported")
    filtered, expressed, mean = (function.name for function in made.functions)
    assert expressed.startswith("deepgen_doubled_f32_to_y") and mean == "deepgen_mean_f32", made
    assert filtered == "deepgen_conv1d_f32"
    (tmp_path / "fixed.c").write_text(FIXED.replace("deepgen_doubled", expressed))
    flags = [f"-I{made.folder / 'include'}", f"-L{made.folder / 'lib'}", "-ldeepgen_kernels"]
    run(["gcc", "-Wall", "-Wpedantic", "-Werror", "fixed.c", "-o", "fixed", *flags], tmp_path)
    run(["./fixed"], tmp_path, LD_LIBRARY_PATH=str(made.folder / "lib"))

    assert main(["library", "export", "--wheel", str(tmp_path / "dist"), "--library", str(expressed_ones)]) == 0
    [wheel] = (tmp_path / "dist").iterdir()
    program = """
import numpy as np, deepgen_kernels as tuned
x = np.arange(12, dtype=np.float32)
assert tuned.mean_f32(x.reshape(2, 6))[1] == 8.5 and tuned.mean_f32(x[:8].reshape(1, 8)) == 3.5
assert tuned.DOUBLED(x[3:5])[0] == 6
for wrong in ((x.reshape(3, 4), {}), (x.reshape(2, 6), {"rows": 3})):
    try:
        tuned.mean_f32(wrong[0], **wrong[1])
    except tuned.NotServed as error:
        print(error)
image, weight = x[:4].reshape(1, 4, 1), x[:2].reshape(2, 1, 1)
assert tuned.conv1d_f32(image, weight, stride=1).ravel().tolist() == [1, 2, 3]
try:
    tuned.conv1d_f32(image, weight)
except TypeError as error:
    print(error)
"""
    run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site")], tmp_path)
    _as_if_tuned_with_another_stride(tmp_path / "site" / "deepgen_kernels" / "functions.json")
    said = run(
        [sys.executable, "-c", program.replace("DOUBLED", expressed.removeprefix("deepgen_"))],
        tmp_path,
        PYTHONPATH=str(tmp_path / "site"),
    ).splitlines()
    assert said == [*["mean_f32 was not tuned for arrays of these shapes. Tuned: mean f32 rows=1 cols=8, "
                      "mean f32 rows=2 cols=6."] * 2,
                    "conv1d_f32: stride cannot be derived from the arrays: pass it as stride="], said  # fmt: skip


def _as_if_tuned_with_another_stride(functions: Path) -> None:
    about = json.loads(functions.read_text())
    [filtered] = (function for function in about["functions"] if function["name"] == "conv1d_f32")
    [tuned] = filtered["shapes"]
    filtered["shapes"].append({**tuned, "sizes": {**tuned["sizes"], "stride": 2}})
    functions.write_text(json.dumps(about))


def gpu_entry(kind: str, made: Kernel, binary: Path, operator: dg.Gemm) -> tuple[Entry, Artifact]:
    target = targets.resolve({"cuda": "cuda:sm_90a", "hip": "hip:gfx90a"}[kind])
    form = "cubin" if kind == "cuda" else "hsaco"
    timed = (Timed(operator, 1e-5, (1e-5, 1e-5), {}),)
    entry = Entry(target, True, None, True, "own", {}, made.id, sha256(binary), (), timed, None, None, {})
    return entry, Artifact(made.id, str(binary), form, "fake", {}, 0.0, plan=made.plan)


ON_GPUS = """
import ctypes, sys, numpy as np
from ctypes import c_int64 as i, c_void_p as p, c_size_t as z
lib = ctypes.CDLL(sys.argv[1]); lib.deepgen_last_error.restype = ctypes.c_char_p
def aligned(*shape):
    raw = np.zeros(int(np.prod(shape)) + 16, np.float32); skip = -raw.ctypes.data % 64 // 4
    return raw[skip:skip + int(np.prod(shape))].reshape(shape)
def call(kind, a, b, c, lda):
    function = lib["deepgen_gemm_f32_nt_" + kind]
    at = [p(x.ctypes.data) for x in (a, b, c)]
    code = function(i(6), i(9), i(12), at[0], i(lda), at[1], i(12), at[2], i(9), None, z(0), None)
    return code, lib.deepgen_last_error().decode()
a, b = aligned(6, 16), aligned(9, 12)
a[:], b[:] = np.arange(96).reshape(6, 16) % 5, np.arange(108).reshape(9, 12) % 7
for kind in ("cuda", "hip"):
    c = aligned(6, 9)
    code, words = call(kind, a, b, c, 16)
    assert code or (c == a[:, :12] @ b.T).all(), "rows may lie apart"
    print(code, words if code else "", call(kind, a.reshape(-1)[1:], b, c, 16))
"""


def test_kernels_for_gpus_are_loaded_by_the_driver(tmp_path: Path) -> None:
    needed("gcc")
    operator = dg.gemm(8, 8, 8, layout="nt")
    assert build_driver(tmp_path) is not None
    run(["gcc", "-shared", "-fPIC", "-w", str(HERE / "fake_hip.c"), "-o", "libamdhip64.so", "-ldl"], tmp_path)
    made, built = kernel(tmp_path, "right")
    library = dg.library(tmp_path / "library", create=True)
    with library.store.changing():
        for kind in ("cuda", "hip"):
            entry, artifact = gpu_entry(kind, made, Path(built.binary), operator)
            library.store.write(entry, made, artifact)
    library.reload()
    out = export(library, tmp_path / "out")
    assert {function.name for function in out.functions} == {"deepgen_gemm_f32_nt_cuda", "deepgen_gemm_f32_nt_hip"}
    program = [sys.executable, "-c", ON_GPUS, str(out.library)]
    said = run(program, tmp_path, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert said == ["0  (2, 'a is not 16-byte aligned')"] * 2
    if host.has_cuda() or host.has_hip():
        return
    without = run(program, tmp_path, LD_LIBRARY_PATH="/nonexistent").splitlines()
    assert "libcuda.so.1 is missing: install the GPU's driver" in without[0] and without[0].startswith("1 ")
    assert "libamdhip64.so is missing: install the GPU's driver" in without[1]


TILES = TensorMapSpec(box=(4, 4), sizes=("cols", "rows"), strides=("stride_x_0 * 4",))
WINDOWS = TensorMapSpec(
    box=(4, 8),
    sizes=("cols", "rows", 1, 1),
    strides=("stride_x_0 * 4", 4096, 4096),
    lower=(-1, 0),
    upper=(0, -2),
    steps=(1, 2),
)


@pytest.mark.parametrize("spec", [TILES, WINDOWS], ids=["tiles", "windows"])
def test_tensor_maps_and_workspaces_on_a_gpu(spec: TensorMapSpec, tmp_path: Path) -> None:
    needed("gcc")
    assert build_driver(tmp_path) is not None
    text = """
    int entry(void** p, const unsigned* grid, const unsigned* block) {
        unsigned long long* map = p[0];  // address, columns, rows, bytes of a row, box
        float *out = *(float**)p[1], *space = *(float**)p[2];
        if (grid[0] != 2 || map[4] != 4 || space[0] != 0) return 1;
        for (unsigned long long i = 0; i < map[2]; i++)
            for (unsigned long long j = 0; j < map[1]; j++)
                out[i * map[1] + j] = 2 * *(float*)(map[0] + i * map[3] + j * 4);
        space[0] = 1;
        return 0;
    }"""
    cubin = image(tmp_path, "maps", text)
    space = WorkspaceArg("space", "rows * 8", zeroed=True)
    args = (DescriptorArg("x", spec), TensorArg("y"), space)
    plan = LaunchPlan(
        (Step("entry", args, grid=("ceil_div(rows, 4)",)),), requires=(("cols % 4 == 0", "whole vectors"),)
    )
    made = Kernel("maps", "cuda", (), (), plan)
    operator = dg.softmax(8, 16)
    entry, artifact = gpu_entry("cuda", made, cubin, operator)  # type: ignore[arg-type]
    library = dg.library(tmp_path / "library", create=True)
    with library.store.changing():
        library.store.write(replace(entry, requires=plan.requires), made, artifact)
    library.reload()
    out = export(library, tmp_path / "out")
    program = f"""
import ctypes, numpy as np
from ctypes import c_int64 as i, c_void_p as p, c_size_t as z
lib = ctypes.CDLL({str(out.library)!r}); lib.deepgen_last_error.restype = ctypes.c_char_p
raw = np.arange(1024, dtype=np.float32); at = -raw.ctypes.data % 64 // 4
x, y, w = raw[at:at + 128].reshape(8, 16), raw[at + 128:at + 256].reshape(8, 16), raw[at + 256:at + 512]
size = z()
assert lib.deepgen_softmax_f32_cuda_workspace(i(8), i(16), ctypes.byref(size)) == 0 and size.value >= 64
def call(cols, bytes):
    args = (p(x.ctypes.data), i(16), p(y.ctypes.data), i(16), p(w.ctypes.data), z(bytes), None)
    return lib.deepgen_softmax_f32_cuda(i(8), i(cols), *args)
for _ in range(2):
    y[:] = 0
    assert call(16, size.value) == 0, lib.deepgen_last_error()
    assert (y == 2 * x).all()
assert call(16, 8) == 3 and call(15, size.value) == 1
"""
    run([sys.executable, "-c", program], tmp_path, LD_LIBRARY_PATH=str(tmp_path))


CHOICES = """
#include "deepgen_kernels_cpu.c"
int main(void) {
    long m, n, k;
    while (scanf("%ld %ld %ld", &m, &n, &k) == 3) {
        const int64_t v[] = {m, n, k, k, n, n};
        const char *why;
        kernel *chosen = choose(deepgen_gemm_f32_nn_groups, 1, v, v, &why);
        puts(chosen ? chosen->name : "none");
    }
}
"""


@pytest.mark.slow
def test_c_chooses_as_python_does(library: Library, tmp_path: Path) -> None:
    needed("gcc")
    for entry, tile in zip(library.list(), ({"MR": 3, "NR": 2}, {"MR": 4, "NR": 3}), strict=False):  # models differ
        told = replace(entry, config={**entry.config, **tile})
        (library.path_of(entry) / "about.json").write_text(json.dumps(told.to_json()))
    library.reload()
    gemms = {entry.operator: entry for entry in library.list() if entry.operator.name == "gemm"}
    [small, large] = sorted(gemms.values(), key=lambda entry: entry.operator.flops())
    with library.store.changing():  # each is the faster one at its own shape, and numpy at a third
        for operator, ours, theirs, numpy in (
            (small.operator, 1.0, 1.7, 1.5),
            (large.operator, 1.4, 1.0, 1.2),
            (dg.gemm(192, 200, 300), 1.3, 1.0, 0.6),
        ):
            kernels = {small.kernel_id: ours, large.kernel_id: theirs}
            library.store.write_times(Times(operator, *small.conditions, kernels, {"numpy": numpy}))
    library.reload()
    made = export(library, tmp_path / "out")
    (tmp_path / "choices.c").write_text(CHOICES)
    places = [f"-I{made.folder / part}" for part in ("src", "include")]
    run(
        ["gcc", "-w", "-ffp-contract=off", *places, "choices.c", "-o", "out/lib/choices", "-ldl", "-lm", "-lpthread"],
        tmp_path,
    )
    rng = np.random.default_rng(0)
    shapes = [(48, 64, 32), (96, 64, 80), *rng.integers(16, 600, (400, 3)).tolist()]
    lines = "\n".join(" ".join(map(str, shape)) for shape in shapes)
    done = subprocess.run(["out/lib/choices"], cwd=tmp_path, input=lines, capture_output=True, text=True, check=True)
    chosen = [library.choose(dg.gemm(*shape), "cpu", ("numpy",)).entry for shape in shapes]
    expected = ["none" if entry is None else entry.name for entry in chosen]
    assert done.stdout.split() == expected and len(set(expected)) == 3


def test_what_cannot_be_exported_is_told(library: Library, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not empty"):
        export(library, tmp_path / "full")
    with pytest.raises(BadInput, match="the name is 'My Lib'"):
        export(library, tmp_path / "out", "My Lib")
    with pytest.raises(BadInput, match="has no entries"):
        export(dg.library(tmp_path / "nothing", create=True), tmp_path / "out")
    assert main(["library", "export", "--library", str(library.folder)]) == 2


def test_names_of_functions() -> None:
    names = {
        "deepgen_gemm_bf16_nt": dg.gemm(8, 8, 8, dtype="bf16", layout="nt"),
        "deepgen_gemm_f32_nn_batched": dg.gemm(8, 8, 8, batch=3),
        "deepgen_gemm_i8_i32_nn_relu_bias": dg.gemm(8, 8, 8, dtype="i8", activation="relu", bias=True),
        "deepgen_softmax_f16": dg.softmax(3, 4, dtype="f16"),
        "deepgen_conv2d_f32_nhwc": dg.conv2d(1, 9, 9, 4, 5, 3, pad=1, stride=2),  # also without padding
    }
    target = targets.resolve("cpu")
    entries = [
        Entry(target, True, None, True, "x", {}, name, "", (), (Timed(op, 1.0, (1.0, 1.0), {}),), None, None, {})
        for name, op in names.items()
    ]
    assert {function.name for function in functions_of(entries)} == set(names)


EXPRESSIONS = (
    "ceil_div(M, 128) * 3",
    "M // 7 % 5",
    "min(M, N, 9) - max(M, 2)",
    "where(M > N, M * 2, N)",
    "-(M - 9) // 4",
    "M % 8 == 0 and N > 3",
    "M in (3, 7, 12)",
    "not (M == N) or N <= 5",
    "implies(M > 4, N > 4)",
)


def test_no_argument_is_called_as_a_word_of_c() -> None:
    assert [argument(name) for name in ("A", "linux", "asm", "NULL", "int", "in", "Exp")] == [
        *("a", "linux_", "asm_", "null", "int_", "in_", "exp_")
    ]


def test_expressions_mean_the_same_in_c(tmp_path: Path) -> None:
    needed("gcc")
    runtime = Path(dg.__file__).parent / "libraries" / "c" / "runtime.h"
    helpers = [line for line in runtime.read_text().splitlines() if line.startswith("static inline int64_t")]
    names = {"M": "m", "N": "n"}
    bodies = [f"long f{i}(int64_t m, int64_t n) {{ return {in_c(e, names)}; }}" for i, e in enumerate(EXPRESSIONS)]
    (tmp_path / "f.c").write_text("\n".join(["#include <stdint.h>", *helpers, *bodies]))
    run(["gcc", "-shared", "-fPIC", "-w", "f.c", "-o", "f.so"], tmp_path)
    built = ctypes.CDLL(str(tmp_path / "f.so"))
    for place, text in enumerate(EXPRESSIONS):
        for m, n in product((1, 3, 7, 12, 128, 129), (1, 4, 12, 64)):
            expected = parse(text).evaluate({"M": m, "N": n})
            assert built[f"f{place}"](ctypes.c_int64(m), ctypes.c_int64(n)) == expected, (text, m, n)


def test_json_of_an_export(library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["library", "export", "--c", str(tmp_path / "out"), "--library", str(library.folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["functions"] == ["deepgen_gemm_f32_nn", "deepgen_softmax_f32"] and told["skipped"] == {}

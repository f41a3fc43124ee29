"""A user's own kernels, tuned in one call: verified, loaded, resumed and reported in the user's terms."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import preloaded
import pytest

import deepgen as dg
from deepgen.kernels.own import OwnKernel

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"
SCALE = """
void scale(float *y, const float *x, float f, int n) {
    for (int i = 0; i < n; i++) y[i] = (WRONG ? f + 1 : f) * x[i];
}
"""
Y, X, F, N = dg.output("y", "n", "f32"), dg.input("x", "n", "f32"), dg.scalar("f", "f32", 3.0), dg.scalar("n", "i32")


def scale(**others: object) -> OwnKernel:
    given = {"arguments": [Y, X, F, N], "sizes": {"n": 500}, "knobs": {"WRONG": [0, 1]}, **others}
    return dg.kernel(SCALE, language="c", entry="scale", **given)  # type: ignore[arg-type]


def tuned(kernel: OwnKernel, tmp_path: Path) -> dg.Study:
    return dg.tune(kernel, target="cpu", trials=4, out=tmp_path, baselines=False)


def deepgen(*words: str, cwd: Path) -> str:
    done = preloaded.deepgen(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_is_tuned_resumed_and_called(tmp_path: Path) -> None:
    deepgen("tune", str(EXAMPLES / "jacobi_c.py"), "rows=60", "cols=70", "--trials", "3", cwd=tmp_path)
    (folder,) = (tmp_path / "deepgen-studies").iterdir()
    # The source is not next to the study's copy of the file: it is in the study itself.
    deepgen("resume", str(folder), "--trials", "5", cwd=tmp_path)
    study = dg.Study.open(folder)
    assert len(study.trials()) == 5 and all(trial.ok for trial in study.trials())
    grid = np.random.default_rng(0).standard_normal((9, 11)).astype(np.float32)
    found = study.best().load()(grid)
    assert np.allclose(
        found[1:-1, 1:-1], (grid[1:-1, :-2] + grid[1:-1, 2:] + grid[:-2, 1:-1] + grid[2:, 1:-1]) / 4, atol=1e-6
    )
    assert (found[0] == grid[0]).all()


def test_tiles_of_the_demo_are_right_at_edges_too(tmp_path: Path) -> None:
    """Sizes that are not multiples of any tile, one below every tile."""
    kernel = runpy.run_path(str(EXAMPLES / "distances.py"))["kernel"]
    study = dg.tune(
        kernel.operator(m=9, n=150, dims=7), target="cpu", trials=6, strategy="random", out=tmp_path, baselines=False
    )
    assert all(trial.ok for trial in study.trials())
    assert study.trials()[0].config == {"ROWS": 1, "COLS": 32, "STEPS": 1}
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((3, 5)).astype(np.float32), generator.standard_normal((5, 33)).astype(np.float32)
    assert np.allclose(study.best().load()(x, y), np.abs(x[:, :, None] - y).sum(1), atol=1e-5)


def test_a_scalar_of_its_own_is_a_keyword_of_the_call(tmp_path: Path) -> None:
    study = tuned(scale(reference=lambda x, f: f * x, knobs={"WRONG": [0, 1]}), tmp_path)
    assert {t.config["WRONG"]: t.ok for t in study.trials()} == {0: True, 1: False}
    kernel, x = study.best().load(), np.arange(7, dtype=np.float32)
    assert (kernel(x) == 3 * x).all()
    assert (kernel(x, f=0.5) == x / 2).all()


def test_without_a_reference_kernels_agree_with_the_first_and_are_not_called_correct(tmp_path: Path) -> None:
    study = tuned(scale(), tmp_path)
    summary = study.summary()
    assert summary["trials"] == {"agrees with config 0": 1, "wrong": 1}
    assert summary["winner"]["verdict"] == "agrees with config 0"  # type: ignore[index, call-overload]
    assert "correct" not in deepgen("show", str(study.folder), cwd=tmp_path)


def test_another_kernel_may_be_the_reference(tmp_path: Path) -> None:
    plain = dg.kernel(
        "void plain(float *y, const float *x, float f, int n) { for (int i = 0; i < n; i++) y[i] = f * x[i]; }",
        language="c",
        entry="plain",
        arguments=[Y, X, F, N],
        sizes={"n": 500},
    )
    study = tuned(scale(reference=plain), tmp_path)
    assert study.summary()["trials"] == {"agrees with the kernel plain": 1, "wrong": 1}


def test_expected_arrays_are_compared(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 500).astype(np.float32)
    arguments = [Y, dg.input("x", "n", "f32", fill=x), F, N]
    study = tuned(scale(arguments=arguments, reference=[3 * x]), tmp_path)
    assert {t.config["WRONG"]: t.ok for t in study.trials()} == {0: True, 1: False}


def test_buffers_of_every_kind(tmp_path: Path) -> None:
    """Read and written, scratch, a global variable, an unchecked output, a permutation; two launches."""
    kernel = dg.kernel(
        """
        float table[4];
        void gather(float *scratch, const float *sum, const int *order, float *junk, int n) {
            for (int i = 0; i < n; i++) scratch[i] = sum[order[i]];
            junk[0] = UNUSED;
        }
        void add(float *scratch, float *sum, int n) {
            for (int i = 0; i < n; i++) sum[i] += scratch[i] * table[i % 4];
        }
        """,
        language="c",
        arguments=[
            dg.inout("sum", "n", "f32"),
            dg.input("order", "n", "i32", fill="permutation"),
            dg.constant("table", 4, "f32"),
            dg.workspace("scratch", "4 * n"),
            dg.output("junk", 3, "f32", checked=False),
            dg.scalar("n", "i32"),
        ],
        sizes={"n": 100},
        knobs={"UNUSED": [1, 2]},
        launches=[
            dg.launch("gather", arguments=["scratch", "sum", "order", "junk", "n"]),
            dg.launch("add", arguments=["scratch", "sum", "n"]),
        ],
        reference=lambda sum, order, table, n: {"sum": sum + sum[order] * np.resize(table, n)},
    )
    study = tuned(kernel, tmp_path)
    assert study.summary()["trials"] == {"correct": 2}


def test_named_probes_are_part_of_the_finals(tmp_path: Path) -> None:
    """A kernel that is only correct on the usual inputs."""
    wrong_at_large = SCALE.replace("* x[i]", "* (x[i] > 100 ? 0 : x[i])")
    kernel = dg.kernel(
        wrong_at_large,
        language="c",
        entry="scale",
        arguments=[Y, X, F, N],
        sizes={"n": 500},
        knobs={"WRONG": [0]},
        reference=lambda x, f: f * x,
        probes={"large": {"x": ("uniform", 200.0, 300.0)}},
    )
    with pytest.raises(dg.DeepgenError, match="large"):
        tuned(kernel, tmp_path).best()


def test_knobs_are_constants_of_a_program_that_asks_for_them(tmp_path: Path) -> None:
    kernel = dg.kernel(
        """
        extern const int scale_STEP;
        void scale(float *y, const float *x, int n) { for (int i = 0; i < n; i++) y[i] = scale_STEP * x[i]; }
        """,
        language="c",
        entry="scale",
        arguments=[Y, X, N],
        sizes={"n": 50},
        knobs={"STEP": [2, 5]},
        reference=lambda x: 5 * x,
    )
    assert {t.config["STEP"]: t.ok for t in tuned(kernel, tmp_path).trials()} == {2: False, 5: True}


def test_macros_may_hold_sizes_and_then_the_kernel_serves_no_other(tmp_path: Path) -> None:
    kernel = dg.kernel(
        "void twice(float *y, const float *x) { for (int i = 0; i < COUNT; i++) y[i] = 2 * x[i]; }",
        language="c",
        entry="twice",
        arguments=[Y, X],
        sizes={"n": 50},
        defines={"COUNT": "n"},
        reference=lambda x: 2 * x,
    )
    loaded = tuned(kernel, tmp_path).best().load()
    assert (loaded(np.ones(50, np.float32)) == 2).all()
    with pytest.raises(dg.BadInput, match="compiled for n=50"):
        loaded(np.ones(51, np.float32))


def test_a_template_in_cpp_with_an_included_file(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "twice.h").write_text("template <typename T> T twice(T x) { return x + x; }\n")
    (tmp_path / "twice.cpp").write_text(
        '#include "twice.h"\n'
        "template <typename T, int S> void all(T *y, const T *x, int n) {\n"
        "    for (int i = 0; i < n; i += S) for (int k = i; k < i + S && k < n; k++) y[k] = twice(x[k]);\n}\n"
    )
    kernel = dg.kernel(
        tmp_path / "twice.cpp",
        entry="all<float, STEP>",
        arguments=[Y, X, N],
        sizes={"n": 50},
        knobs={"STEP": [1, 4]},
        include=[tmp_path / "include"],
        reference=lambda x: 2 * x,
    )
    assert tuned(kernel, tmp_path).summary()["trials"] == {"correct": 2}


def test_a_corrected_reference_judges_anew(tmp_path: Path) -> None:
    wrong = tuned(scale(reference=lambda x, f: (f + 1) * x), tmp_path)
    assert {t.config["WRONG"]: t.ok for t in wrong.trials()} == {0: False, 1: True}
    right = tuned(scale(reference=lambda x, f: f * x), tmp_path)
    assert {t.config["WRONG"]: t.ok for t in right.trials()} == {0: True, 1: False}
    assert any(f"reference of scale n=500 changed since {wrong.folder.name}" in text for _, text in right.notes())
    assert tuned(scale(reference=lambda x, f: f * x), tmp_path).folder == right.folder
    assert tuned(scale(reference=lambda x, f: (f + 1) * x), tmp_path).folder == wrong.folder


def test_other_inputs_and_probes_judge_anew(tmp_path: Path) -> None:
    def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> object:
        return rng.random(shape)

    def of(fill: object, bound: float) -> dg.Study:
        x = dg.input("x", "n", "f32", fill=fill)  # type: ignore[arg-type]
        probes = {"wide": {"x": ("uniform", -bound, bound)}}
        kernel = scale(reference=lambda x, f: f * x, knobs={"WRONG": [0]}, arguments=[Y, x, F, N], probes=probes)
        return tuned(kernel, tmp_path)

    first = of(positive, 9.0)
    other = of(lambda rng, shape: 2 - rng.random(shape), 9.0)
    wider = of(positive, 99.0)
    assert len({first.folder, other.folder, wider.folder}) == 3
    assert of(positive, 9.0).folder == first.folder

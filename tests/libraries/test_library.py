"""A library of winners: what programs get from it, and what it rejects."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen import targets
from deepgen.frontends.cli.main import main
from deepgen.libraries import Entry, Library, NotServed
from deepgen.libraries.entry import Times
from deepgen.libraries.racing import Checked, check, time_across
from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.tuning import Study
from deepgen.tuning.study.winner import sha256
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

GEMM = dg.gemm(48, 64, 32)


def arrays(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


@pytest.fixture(autouse=True)
def no_surprise() -> Iterator[None]:
    """A vendor's library that serves in place of a kernel is an error unless a test expects it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # ignores whatever an earlier test has leaked
        yield


def entry_of(library: Library, operator: dg.Gemm = GEMM) -> Entry:
    return next(entry for entry in library.list() if entry.operator == operator)


def test_a_tuned_shape_is_served_by_its_winner(library: Library) -> None:
    choice = library.choose(GEMM, "cpu")
    assert choice.exact and choice.entry == entry_of(library) and choice.seconds == choice.entry.seconds
    a, b = arrays(48, 64, 32)
    np.testing.assert_allclose(choice.load()(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert library.served == {"exact": 1}


def test_a_shape_that_nobody_tuned_is_served_by_a_neighbour(library: Library) -> None:
    choice = library.choose(dg.gemm(52, 70, 33), "cpu")
    assert choice.how == "neighbour" and not choice.exact
    assert choice.entry == entry_of(library), "the nearest one"
    assert "predicted from 2 tuned shapes" in choice.reason
    a, b = arrays(52, 70, 33)
    np.testing.assert_allclose(choice.load()(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_the_vendor_serves_where_no_kernel_does_and_that_is_said(library: Library) -> None:
    choice = library.choose(dg.gemm(48, 64, 32, layout="nt"), "cpu")
    assert (choice.how, choice.entry, choice.vendor) == ("vendor", None, "numpy")
    assert "no kernel for this operator" in choice.reason
    a, b = arrays(48, 64, 32)
    with pytest.warns(UserWarning, match="numpy is used for gemm f32 nt 48x64x32: the library has no kernel"):
        kernel = choice.load()
    np.testing.assert_allclose(kernel(a, np.ascontiguousarray(b.T)), a @ b, rtol=1e-4, atol=1e-4)
    assert library.served["vendor"] == 1


def test_far_from_every_tuned_shape_nothing_is_promised(library: Library) -> None:
    assert "differ by a factor of" in library.choose(dg.gemm(4096, 4096, 4096), "cpu").reason


def test_the_vendor_serves_where_it_was_faster(library: Library) -> None:
    entry = entry_of(library)
    [timed] = entry.timed
    fast = replace(timed.baselines["numpy"], seconds=timed.seconds / 2, ratio=0.5, interval=(0.4, 0.6))
    behind = replace(entry, timed=(replace(timed, baselines={"numpy": fast}),))
    (library.path_of(entry) / "about.json").write_text(json.dumps(behind.to_json()))
    library.reload()
    choice = library.choose(GEMM, "cpu")
    assert choice.vendor == "numpy" and "numpy is faster" in choice.reason


def test_what_nothing_serves_is_refused_in_words(library: Library) -> None:
    choice = library.choose(dg.gemm(64, 64, 64, dtype="f8e4m3"), "cpu")
    assert choice.how == "none"
    with pytest.raises(NotServed, match="is not supported: the library has no kernel"):
        choice.load()


def test_a_requirement_keeps_a_kernel_from_other_shapes(library: Library) -> None:
    entry = entry_of(library)
    picky = replace(entry, requires=(("M % 16 == 0", "M must be a multiple of 16"),))
    (library.path_of(entry) / "about.json").write_text(json.dumps(picky.to_json()))
    library.reload()
    choice = library.choose(dg.gemm(50, 64, 32), "cpu")
    assert choice.entry == entry_of(library, dg.gemm(96, 64, 80))
    [refused] = [one for one in choice.considered if one.why_not]
    assert refused.why_not == "it requires: M must be a multiple of 16"


def test_kernels_of_another_architecture_stay_beside_ours(library: Library) -> None:
    entry = entry_of(library)
    here = targets.resolve("cpu")
    there = targets.resolve("x86:avx512" if here.kind == "arm" else "arm:neon")
    foreign = replace(entry, target=there)
    shutil.copytree(library.path_of(entry), library.path_of(foreign))
    (library.path_of(foreign) / "about.json").write_text(json.dumps(foreign.to_json()))
    library.reload()
    assert len(library.list()) == 4
    assert library.choose(GEMM, "cpu").entry == entry
    assert library.choose(GEMM, there).entry == foreign
    with pytest.raises(DeepgenError, match=f"a device that runs {there.name} is missing"):
        library.load(foreign)
    library.prune((entry.name, entry_of(library, dg.gemm(96, 64, 80)).name))
    assert f"its kernels are for {there.name}" in library.choose(GEMM, "cpu").reason


def test_a_changed_binary_is_refused(library: Library) -> None:
    binary = library.path_of(entry_of(library)) / "kernel.so"
    binary.write_bytes(binary.read_bytes()[:-1] + b"!")
    with pytest.raises(DeepgenError, match="its binary is not the one that was measured"):
        library.choose(GEMM, "cpu").load()


@pytest.mark.parametrize("file", ["about.json", "kernel.json", "binary.sha256", "plan.json"])
def test_a_truncated_file_is_refused(library: Library, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = entry_of(library)
    path = library.path_of(entry) / file
    path.write_bytes(path.read_bytes()[:40])
    library.reload()
    if file == "about.json":
        assert entry.name in library.damaged()
        assert main(["library", "list", "--library", str(library.folder)]) == 1
        assert "is not JSON" in capsys.readouterr().err
        return
    with pytest.raises(DeepgenError, match=str(library.folder)):
        library.load(entry)


def test_binaries_of_somebody_else_ask_for_trust(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    with pytest.raises(DeepgenError, match=r"contains a binary that this user's deepgen did not write.*trust=True"):
        library.choose(GEMM, "cpu").load()
    a, b = arrays(48, 64, 32)
    assert dg.library(library.folder, trust=True).choose(GEMM, "cpu").load()(a, b).shape == (48, 64)
    merged = dg.library(tmp_path / "merged", create=True)
    merged.merge(library)
    with pytest.raises(DeepgenError, match="did not write"):
        merged.choose(GEMM, "cpu").load()
    trusting = dg.library(tmp_path / "trusting", create=True)
    trusting.merge(dg.library(library.folder, trust=True))
    assert trusting.choose(GEMM, "cpu").load()(a, b).shape == (48, 64)


def test_of_two_winners_the_faster_stays(library: Library, studies: list[Study], tmp_path: Path) -> None:
    assert library.add(studies[0]) == "kept", "it is no faster than itself"
    other = dg.library(shutil.copytree(library.folder, tmp_path / "other"))
    entry = entry_of(other)
    faster = replace(entry, timed=(replace(entry.timed[0], seconds=entry.seconds / 2),))
    (other.path_of(entry) / "about.json").write_text(json.dumps(faster.to_json()))
    other.reload()
    warm = replace(entry, cold=False, timed=(replace(entry.timed[0], seconds=entry.seconds / 4),))
    shutil.copytree(other.path_of(entry), other.path_of(warm))
    (other.path_of(warm) / "about.json").write_text(json.dumps(warm.to_json()))
    other.reload()
    became = library.merge(other)
    assert became[entry.name] == "replaced" and became[warm.name] == "added", "warm and cold times are not compared"
    assert sorted(became.values()) == ["added", "kept", "kept", "replaced"]
    times = {one.name: one.seconds for one in library.list()}
    assert times[entry.name] == entry.seconds / 2 and times[warm.name] == entry.seconds / 4 and len(times) == 4


def test_other_folders_are_no_libraries(tmp_path: Path, studies: list[Study]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not a deepgen library"):
        dg.library(tmp_path)
    with pytest.raises(BadInput, match=r"there is no library '.*typo' \(dg.library\(path, create=True\) creates one\)"):
        dg.library(tmp_path / "typo")
    newer = dg.library(tmp_path / "newer", create=True)
    newer.add(studies[2])
    (tmp_path / "newer" / "format").write_text("deepgen library 2\n")
    with pytest.raises(BadInput, match="another version of deepgen"):
        dg.library(tmp_path / "newer")
    with pytest.raises(BadInput, match="another version of deepgen"):
        newer.add(studies[2])


def test_prune_removes_what_is_damaged(library: Library) -> None:
    binary = library.path_of(entry_of(library)) / "kernel.so"
    binary.write_bytes(b"")
    assert [one.name for one in library.prune(dry_run=True)] == [entry_of(library).name]
    assert len(library.list()) == 3
    assert library.prune()[0].why.startswith("damaged") and len(library.list()) == 2
    with pytest.raises(BadInput, match="no entry 'x'"):
        library.prune(("x",))


def test_prune_removes_what_another_kernel_serves_as_fast(library: Library) -> None:
    one, other = (entry_of(library, operator) for operator in (GEMM, dg.gemm(96, 64, 80)))
    times = Times(GEMM, *one.conditions, {one.kernel_id: 2e-6, other.kernel_id: 1e-6}, {})
    with library.store.changing():
        library.store.write_times(times)
    library.reload()
    assert library.choose(GEMM, "cpu").entry == other, "as timed side by side"
    [pruned] = library.prune()
    assert (pruned.name, pruned.why) == (one.name, f"{other.name} is as fast at its shape")


class Fixed:
    """GEMM in plain C. The fast kernels only serve the shape that they are built for."""

    name = "fixed_sizes"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("FIXED", [True, False])
        return space

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"FIXED": True}

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = """#include <stdint.h>
        void entry(const float *A, const float *B, float *C, int64_t M, int64_t N, int64_t K) {
            for (volatile int slow = 0; slow < SLOW; slow++) ;
            for (int64_t i = 0; i < M; i++)
                for (int64_t j = 0; j < N; j++) {
                    float sum = 0;
                    for (int64_t k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
                    C[i * N + j] = sum;
                }
        }"""
        args = (*map(TensorArg, "ABC"), *(ScalarArg("i64", name) for name in "MNK"))
        sizes = operator.sizes() if config["FIXED"] else {}
        fixed = ((f"{name} == {size}", f"{name} = {size}") for name, size in sizes.items())
        plan = LaunchPlan((Step("entry", args),), requires=(("batch == 1", "a single matrix"), *fixed))
        flags = (f"-DSLOW={0 if config['FIXED'] else 300000}",)
        return Kernel(self.name, "c", (Source("k.c", text),), flags, plan)


def test_a_winner_for_one_shape_gets_company(tmp_path: Path) -> None:
    words: dict[str, Any] = {"trials": 2, "strategy": "exhaustive", "keep_top": 2, "baselines": False}
    study = dg.tune(dg.gemm(64, 64, 16), target="cpu", generator=Fixed(), out=tmp_path / "studies", **words)
    assert study.best().trial.config == {"FIXED": True}
    library = dg.library(tmp_path / "library", create=True)
    library.add(study)
    assert {entry.general: entry.config["FIXED"] for entry in library.list()} == {True: False, False: True}
    assert library.choose(dg.gemm(64, 64, 16), "cpu").entry == next(e for e in library.list() if not e.general)
    a, b = arrays(70, 60, 17)
    choice = library.choose(dg.gemm(70, 60, 17), "cpu")
    assert choice.entry is not None and choice.entry.general
    np.testing.assert_allclose(choice.load()(a, b), a @ b, rtol=1e-4, atol=1e-4)


def planted(library: Library, change: Callable[[str], str]) -> Entry:
    """The entry with another kernel in its place, as if that were the winner, with valid digest and signature."""
    entry = entry_of(library)
    stored = library.store.stored(entry, trusted=True)
    first, *others = stored.kernel.sources
    assert change(first.text) != first.text
    kernel: Kernel = replace(stored.kernel, sources=(Source(first.name, change(first.text)), *others))
    artifact = replace(build_once(kernel, entry.target), plan=stored.plan)
    made = replace(entry, kernel_id=kernel.id, binary=sha256(Path(artifact.binary)))
    library.store.write(made, kernel, artifact)
    return made


def test_check_finds_a_wrong_and_a_slow_entry(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    library.prune(tuple(e.name for e in library.list() if e.operator != GEMM))
    [fine] = check(library, tolerance=50.0)
    assert fine.verdict == "right" and fine.now is not None
    run = "pool_run(threads, draw_tasks, &g);"  # of the families for this and for any CPU
    entry = planted(library, lambda text: text.replace(run, f"{run} C[ldc] += 1;"))
    [wrong] = check(dg.library(library.folder), tolerance=50.0)
    assert (wrong.name, wrong.verdict) == (entry.name, "wrong") and "C[1, 0] is" in wrong.detail
    slow = planted(
        dg.library(library.folder),
        lambda text: text.replace("C[ldc] += 1;", "for (volatile long i = 0; i < 500000; i++) ;"),
    )
    capsys.readouterr()
    assert main(["library", "check", "--library", str(library.folder), "--tolerance", "5", "--json"]) == 1
    [told] = json.loads(capsys.readouterr().out)["entries"]
    assert (told["name"], told["verdict"], told["failed"]) == (slow.name, "slower", True)
    assert "times as long as" in told["detail"]


def test_kernels_are_timed_at_each_others_shapes(library: Library) -> None:
    library.prune(tuple(e.name for e in library.list() if e.operator.name != "gemm"))
    assert time_across(library) == 2
    assert sorted(len(row.kernels) for row in library.content().times) == [2, 2]
    choice = library.choose(GEMM, "cpu")
    assert choice.how in ("exact", "vendor"), "kernels and numpy were timed here"
    slug = GEMM.slug()
    [here] = [row for row in library.content().times if row.operator.slug() == slug]
    expected = min(here.kernels, key=lambda kernel: here.kernels[kernel])
    assert choice.entry is None or choice.entry.kernel_id == expected


def test_check_names_what_is_damaged_and_what_is_elsewhere(library: Library) -> None:
    for entry in library.list():
        (library.path_of(entry) / "kernel.so").write_bytes(b"x")
    found = check(library)
    assert {one.verdict for one in found} == {"refused"} and all(one.failed for one in found)
    assert not Checked("x", "elsewhere").failed


def test_two_processes_do_not_change_a_library_at_once(library: Library) -> None:
    other = dg.library(library.folder).store
    refused = pytest.raises(DeepgenError, match=f"being modified by process {os.getpid()}")
    with library.store.changing(), refused, other.changing(wait=0.0):
        pass


def test_the_command_line(library: Library, studies: list[Study], capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--library", str(library.folder)]
    assert main(["library", "add", str(studies[0].folder), *where]) == 0
    assert capsys.readouterr().out.split()[0] == "kept"
    assert main(["library", "list", *where, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert len(entries) == 3
    [gemm] = [row for name, row in entries.items() if name.startswith("gemm-f32-nn-48x64x32")]
    assert gemm["provenance"]["study"] == studies[0].folder.name
    assert gemm["provenance"]["versions"]["toolchain"] != "unknown"
    assert main(["library", "why", "gemm", "M=48", "N=64", "K=32", "--target", "cpu", *where]) == 0
    assert "measured at this shape" in capsys.readouterr().out
    assert main(["library", "why", "gemm", "MNK=3000", "--library", "nowhere"]) == 2
    assert "there is no library 'nowhere'" in capsys.readouterr().err

"""Unsupported requests are refused at once, with what is supported instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.targets import host

HUGE = ("gemm", "MNK=1099511627776")


def test_a_refusal_names_what_would_be_served(deepgen: Callable, project: Path) -> None:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "cuda:sm_70", "--dtype", "fp8")
    assert said.code == 2
    first, _, rest = said.err.partition(" (supported there: ")
    assert first == "deepgen: no generator supports gemm f8e4m3_bf16 nn 64x64x64 on cuda:sm_70"
    assert rest.startswith("dtype f64, f32, tf32, f16, bf16, i8, u8; see why: deepgen space gemm M=64 ")
    assert len(said.err) < 300 and not [*project.iterdir()]


def test_the_command_that_it_names_tells_every_familys_reason(deepgen: Callable) -> None:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "cuda:sm_70", "--dtype", "fp8")
    command = re.search(r"see why: deepgen (.*)\)", said.err)
    assert command is not None
    why = deepgen(*command[1].split())
    assert why.code == 0 and "sm90_gemm" in why.out and "sm_90a only" in why.out
    refused = deepgen(*command[1].split(), "--json").json()["refused"]
    assert all(refused.values()) and "mma_gemm" in refused


@pytest.mark.parametrize("command", [("tune",), ("space",), ("build", "-o", "built")])
def test_sizes_beyond_any_index_are_refused_at_once(deepgen: Callable, project: Path, command: tuple) -> None:
    said = deepgen(command[0], *HUGE, *command[1:], "--target", "cpu")
    assert said.code == 2
    assert "A takes 4.84e+24 bytes (at most 9.22e+18 bytes a tensor" in said.err
    assert not [*project.iterdir()]


def test_sizes_beyond_the_machines_memory_are_refused_at_once(
    deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "memory_bytes", lambda: 2 * 2**30)
    said = deepgen("tune", "gemm", "MNK=16384", "--target", "cpu")
    assert said.code == 2
    assert "16384x16384x16384 needs 3.0 GiB for its tensors (at most 2.0 GiB, the memory of this machine)" in said.err
    assert not [*project.iterdir()]
    with pytest.raises(dg.BadInput, match="the memory of this machine"):
        dg.tune([dg.gemm(64, 64, 64), dg.gemm(16384, 16384, 16384)], target="cpu", out=project)
    assert not [*project.iterdir()]


def test_sizes_beyond_the_gpus_memory_are_refused_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_bytes", lambda: 2**40)
    monkeypatch.setattr(host, "gpu_memory_bytes", lambda target: 80 * 2**30)
    with pytest.raises(dg.BadInput, match=r"needs 144\.8 GiB .* \(at most 80\.0 GiB, the memory of the GPU\)"):
        dg.tune(dg.gemm(65536, 65536, 512), target="cuda:sm_90a", out=project)
    assert not [*project.iterdir()]


def test_what_is_only_built_or_looked_at_needs_no_memory(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_bytes", lambda: 2**20)
    assert deepgen("space", "gemm", "MNK=16384", "--target", "cpu").code == 0

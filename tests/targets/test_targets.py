"""Targets: what the machine tells becomes facts, and names that mean nothing are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepgen import targets
from deepgen.targets import X86, Sim, host
from deepgen.targets.sim import FAULTS, fault, noisy, true_seconds
from deepgen.targets.x86 import from_facts, narrowed
from deepgen.vocabulary import BadInput

CPUINFO = """processor\t: 0
model name\t: Example Processor 9000
flags\t\t: fpu sse2 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl amx_tile
"""


def test_facts_come_from_the_machine() -> None:
    cpu = from_facts(CPUINFO, {"L1d": 48 << 10, "L2": 2 << 20, "L3": 32 << 20}, cores=4)
    assert (cpu.model, cpu.cores, cpu.l2_bytes) == ("Example Processor 9000", 4, 2 << 20)
    assert cpu.has("avx512f", "amx_tile") and not cpu.has("avx512_fp16")
    assert (cpu.vector_bytes, cpu.vector_registers) == (64, 32)


def test_a_lesser_architecture_of_the_same_machine() -> None:
    cpu = narrowed(from_facts(CPUINFO, {}, cores=1), "avx2")
    assert (cpu.name, cpu.vector_bytes, cpu.vector_registers) == ("x86:avx2", 32, 16)


def test_a_silent_machine_still_is_a_target() -> None:
    cpu = from_facts("", {}, cores=1)
    assert cpu.vector_bytes == 16 and cpu.l1d_bytes > 0


def test_cache_sizes_are_read(tmp_path: Path) -> None:
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    for index, (level, kind, size) in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert host.cache_sizes(tmp_path) == {"L1d": 48 << 10, "L2": 2 << 20}


@pytest.mark.parametrize("name", ["x86:native", "x86:avx2", "x86:avx512", "sim", "sim:noise=0.1,seed=7"])
def test_json_round_trip(name: str) -> None:
    target = targets.resolve(name)
    assert targets.from_json(target.to_json()) == target
    assert target.fingerprint() == targets.from_json(target.to_json()).fingerprint()


def test_no_name_means_the_best_device_here() -> None:
    assert isinstance(targets.resolve(None), X86)


@pytest.mark.parametrize("name", ["quantum:q1", "x86:z80", "sim:colour=red", "sim:noise=loud"])
def test_an_unknown_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        targets.resolve(name)
    assert caught.value.allowed


def test_the_simulated_device_is_deterministic() -> None:
    sim = Sim("sim", noise=0.02, seed=4, faults=0.3)
    configs = [{"A": a, "B": b} for a in range(20) for b in range(20)]
    assert [true_seconds(sim, 1000, c) for c in configs] == [true_seconds(sim, 1000, c) for c in configs]
    verdicts = [fault(sim, c) for c in configs]
    assert 0.2 < sum(v is not None for v in verdicts) / len(verdicts) < 0.4
    assert {v for v in verdicts if v} == set(FAULTS)
    assert noisy(sim, 1.0, "key", 3) == noisy(sim, 1.0, "key", 3) != noisy(sim, 1.0, "other", 3)

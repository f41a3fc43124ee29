"""Targets: facts are read from the machine, and unknown names are refused."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from deepgen import targets
from deepgen.targets import X86, Arm, Elsewhere, Sim, Target, host
from deepgen.targets import cpu as arm_facts
from deepgen.targets.cpu import common, narrowed, x86_from_facts
from deepgen.targets.gpu import parse_cuda
from deepgen.targets.sim import FAULTS, fault, noisy, true_seconds
from deepgen.vocabulary import BadInput, Missing

CPUINFO = """processor\t: 0
model name\t: Example Processor 9000
flags\t\t: fpu sse2 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl amx_tile
"""


def test_facts_come_from_the_machine() -> None:
    cpu = x86_from_facts(CPUINFO, {"L1d": 48 << 10, "L2": 2 << 20, "L3": 32 << 20}, cores=4)
    assert (cpu.model, cpu.cores, cpu.l2_bytes) == ("Example Processor 9000", 4, 2 << 20)
    assert cpu.has("avx512f", "amx_tile") and not cpu.has("avx512_fp16")
    assert (cpu.vector_bytes, cpu.vector_registers) == (64, 32)


def test_a_lesser_architecture_of_the_same_machine() -> None:
    cpu = narrowed(x86_from_facts(CPUINFO, {}, cores=1), "avx2")
    assert (cpu.name, cpu.vector_bytes, cpu.vector_registers) == ("x86:avx2", 32, 16)


ARM = """processor\t: 0
Features\t: fp asimd evtstrm atomics fphp asimdhp cpuid asimddp bf16 madeup
CPU implementer\t: 0x41
CPU part\t: 0xd0c
"""


def test_an_arm_machine_is_a_target_too() -> None:
    cpu = arm_facts.arm_from_facts(ARM, {"L1d": 64 << 10}, cores=2)
    assert (cpu.name, cpu.model, cpu.isa[-1]) == ("arm:native", "Neoverse N1", "bf16")
    assert (cpu.vector_bytes, cpu.vector_registers, cpu.l1d_bytes) == (16, 32, 64 << 10)
    other = arm_facts.arm_from_facts(ARM.replace("0x41", "0x61"), {}, cores=2)
    assert "0x61" in other.model and arm_facts.arm_from_facts("", {}, cores=1).model


def test_a_processor_that_is_not_here_can_be_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, elsewhere in (("aarch64", "x86:amx"), ("x86_64", "arm:neon")):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        target = targets.resolve(elsewhere)
        assert "common" in target.describe()
        with pytest.raises(Elsewhere, match="bundle pack"):
            targets.device_for(target)
        with pytest.raises(Missing, match=f"this machine is {machine}"):
            targets.resolve(elsewhere.partition(":")[0])
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(Missing, match="this machine is vax"):
        targets.resolve("cpu")


@pytest.mark.parametrize(
    ("target", "found", "runs"),
    [
        (common(X86, 2), narrowed(common(X86, 4), "avx2"), True),
        (narrowed(common(X86, 2), "avx512"), narrowed(common(X86, 2), "avx2"), False),
        (common(X86, 2), common(Arm, 2), False),
        (parse_cuda("sm_80"), parse_cuda("sm_86"), True),
        (parse_cuda("sm_90a"), parse_cuda("sm_80"), False),
        (common(Arm, 2), parse_cuda("sm_80"), False),
    ],
)
def test_what_was_built_for_one_device_runs_on_some_others(target: Target, found: Target, runs: bool) -> None:
    assert target.runs_on(found) is runs


def test_cores_limit_a_processor_and_nothing_else() -> None:
    cpu = common(Arm, 8)
    assert [getattr(cpu.limited_to(cores), "cores", 0) for cores in (None, 2, 99)] == [8, 2, 8]
    assert parse_cuda("sm_80").limited_to(2) == parse_cuda("sm_80")


def test_a_silent_machine_still_is_a_target() -> None:
    cpu = x86_from_facts("", {}, cores=1)
    assert cpu.vector_bytes == 16 and cpu.l1d_bytes > 0


def test_cache_sizes_are_read(tmp_path: Path) -> None:
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    for index, (level, kind, size) in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert host.cache_sizes(tmp_path) == {"L1d": 48 << 10, "L2": 2 << 20}


@pytest.mark.parametrize(
    "name", ["cpu", "x86:avx2", "x86:avx512", "arm:neon", "arm:neon_dot", "sim", "sim:noise=0.1,seed=7", "vta"]
)
def test_json_round_trip(name: str) -> None:
    target = targets.resolve(name)
    assert targets.from_json(target.to_json()) == target
    assert target.fingerprint() == targets.from_json(target.to_json()).fingerprint()


@pytest.mark.parametrize(
    ("name", "fact", "value"),
    [
        ("x86:avx2", "model", "Xeon\n"),
        ("cuda:sm_90a", "features", ["wgmma\n"]),
        ("cuda:sm_90a", "peaks", [["f32\n", 1.0]]),
        ("cuda:sm_90a", "peaks", [["f32", float("inf")]]),
        ("cuda:sm_90a", "bandwidth_gbs", float("nan")),
    ],
)
def test_facts_that_kernels_must_not_have_are_refused(name: str, fact: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"{fact} is .* \\(finite numbers, and text without control characters\\)"):
        targets.from_json({**targets.resolve(name).to_json(), fact: value})  # type: ignore[dict-item]


def test_no_name_means_the_best_device_here() -> None:
    assert targets.resolve(None).name == targets.best()
    if not host.has_cuda() and not host.has_hip():
        assert targets.resolve(None) == targets.resolve("cpu") == targets.resolve("cpu:native") == host.processor()


@pytest.mark.parametrize(
    "name", ["quantum:q1", "x86:z80", "arm:thumb", "cpu:z80", "sim:colour=red", "sim:noise=loud", "vta:x"]
)
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


def test_the_system_is_named_without_running_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was run")

    monkeypatch.setattr("subprocess.Popen", refuse)
    assert host.system().endswith(host.machine()) and host.system().startswith(platform.system())

"""`deepgen doctor`: what is available, what is missing, whether clocks are unlocked, and each setting's source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen import settings
from deepgen.frontends.cli import clocks, doctor


def _files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_json_is_one_object_with_every_part(deepgen: Callable) -> None:
    said = deepgen("doctor", "--json")
    assert said.code == 0
    found = said.json()
    assert {"devices", "toolchains", "packages", "missing", "clocks", "settings"} <= set(found)
    assert {tool["name"] for tool in found["toolchains"]} >= {"gcc", "clang", "zig"}
    assert next(p for p in found["packages"] if p["name"] == "numpy")["version"]
    assert next(s for s in found["settings"] if s["key"] == "limits.jobs")["from"] == "default"


def test_what_was_never_executed_says_so(deepgen: Callable) -> None:
    found = deepgen("doctor", "--json").json()
    told = {row["target"]: row["evidence"] for row in found["targets"]}
    never = " ".join(target for target, evidence in told.items() if evidence == doctor.NEVER_EXECUTED)
    for arch in ("gfx906", "gfx942", "Hygon", "sm_70", "sm_80"):
        assert arch in never
    assert "sm_90a" not in never
    assert {"nvrtc", "hip"} <= {tool["name"] for tool in found["toolchains"]}
    assert doctor.NEVER_EXECUTED in " ".join(deepgen("doctor").out.split())


def test_text_tells_the_gpu_commands_and_where_settings_came_from(deepgen: Callable, project: Path) -> None:
    (project / "deepgen.toml").write_text("[limits]\njobs = 3\n")
    said = deepgen("doctor")
    assert said.code == 0
    assert "nvidia-smi -lgc" in said.out
    assert "power_dpm_force_performance_level" in said.out
    assert "limits.jobs = 3 (deepgen.toml)" in said.out


def test_a_missing_compiler_says_what_it_blocks_and_how_to_get_it(
    deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    missing = {item["what"]: item for item in deepgen("doctor", "--json").json()["missing"]}
    assert "building C kernels" in missing["gcc"]["blocks"]
    assert "install" in missing["gcc"]["remedy"].lower()
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    missing = {item["what"]: item for item in deepgen("doctor", "--json").json()["missing"]}
    assert "calling loaded kernels" in missing["Python.h"]["blocks"]


def test_a_toolchain_path_that_is_wrong_is_shown_as_such(deepgen: Callable, project: Path) -> None:
    (project / "deepgen.toml").write_text('[toolchains]\ngcc = "no/such/gcc"\n')
    settings.allow(project / "deepgen.toml")
    gcc = next(t for t in deepgen("doctor", "--json").json()["toolchains"] if t["name"] == "gcc")
    assert not gcc["ok"]
    assert "no/such/gcc" in gcc["problem"]


def test_a_package_that_is_not_installed_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = doctor.Extra("ghost", "haunting", ("deepgen-ghost", "numpy"))
    monkeypatch.setattr(doctor, "EXTRAS", (ghost,))
    missing = {item["what"]: item for item in doctor.examine(settings.load())["missing"]}
    row = missing["extra ghost"]
    assert (row["why"], row["blocks"]) == ("deepgen-ghost not installed", "haunting")
    assert "pip install -e '.[ghost]'" in row["remedy"]


CPU = "sys/devices/system/cpu"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({}, "unknown"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave"}, "free-running"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/intel_pstate/no_turbo": "0"}, "free-running"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/intel_pstate/no_turbo": "1"}, "held"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/cpufreq/boost": "0"}, "held"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/cpufreq/boost": "1"}, "free-running"),
    ],
)
def test_cpu_clocks(tmp_path: Path, files: dict[str, str], state: str) -> None:
    _files(tmp_path, files)
    found = clocks.cpu(tmp_path)
    assert found.state == state
    assert any("cpupower" in command for command in found.lock)


def test_undoing_restores_the_governor_that_was(tmp_path: Path) -> None:
    _files(tmp_path, {f"{CPU}/cpu0/cpufreq/scaling_governor": "ondemand", f"{CPU}/cpufreq/boost": "1"})
    found = clocks.cpu(tmp_path)
    assert found.undo == (
        "sudo cpupower frequency-set -g ondemand",
        "echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
    )


def test_nvidia_gpus_with_their_exact_commands(tmp_path: Path) -> None:
    smi = _program(
        tmp_path / "nvidia-smi",
        "echo '0, NVIDIA H100, 9.0, 550.1, 81559, 345, 1980'; echo '1, NVIDIA H100, 9.0, 550.1, 81559, 1980, 1980'",
    )
    first, second = clocks.nvidia_gpus(str(smi))
    assert (first.name, first.compute_capability, first.driver) == ("NVIDIA H100", "9.0", "550.1")
    idle, busy = clocks.nvidia(first), clocks.nvidia(second)
    assert (idle.state, busy.state) == ("free-running", "unknown")
    assert idle.lock == ("sudo nvidia-smi -pm 1 -i 0", "sudo nvidia-smi -lgc 1980,1980 -i 0")
    assert busy.undo == ("sudo nvidia-smi -rgc -i 1",)


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed, no driver'", "printf '\\377'"])
def test_a_broken_nvidia_smi_means_no_gpu(tmp_path: Path, script: str) -> None:
    assert clocks.nvidia_gpus(str(_program(tmp_path / "nvidia-smi", script))) == []
    assert clocks.nvidia_gpus(None) == clocks.nvidia_gpus(str(tmp_path / "none")) == []


def test_amd_gpus_with_their_exact_commands(tmp_path: Path) -> None:
    card = "sys/class/drm/card1"
    _files(
        tmp_path,
        {
            f"{card}/device/vendor": "0x1002",
            f"{card}/device/power_dpm_force_performance_level": "auto",
            f"{card}/device/pp_dpm_sclk": "0: 500Mhz *\n1: 1725Mhz",
            f"{card}-DP-1/device/vendor": "0x1002",
            "sys/class/drm/card0/device/vendor": "0x8086",
        },
    )
    (found,) = clocks.amd(tmp_path)
    assert (found.device, found.state) == ("amd:card1", "free-running")
    assert found.lock == (
        "cd /sys/class/drm/card1/device",
        "echo manual | sudo tee power_dpm_force_performance_level",
        "echo 1 | sudo tee pp_dpm_sclk",
    )
    assert found.undo[-1] == "echo auto | sudo tee power_dpm_force_performance_level"


def test_gpus_appear_among_the_devices(deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(project / "bin" / "nvidia-smi", "echo '0, NVIDIA H100, 9.0, 550.1, 81559, 345, 1980'")
    monkeypatch.setenv("PATH", str(project / "bin"), prepend=":")
    devices = {device["kind"]: device for device in deepgen("doctor", "--json").json()["devices"]}
    assert devices["cuda"]["compute_capability"] == "9.0"
    assert "compute capability 9.0" in deepgen("doctor").out

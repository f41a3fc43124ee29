"""GPU targets: consistent facts, names that users type, cards described by a driver or by Linux, occupancy."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepgen import targets
from deepgen.targets import Cuda, Gpu, Hip, host
from deepgen.targets.gpu import blocks_resident, found_cuda, occupancy
from deepgen.targets.gpu_facts import CUDA_ARCHES, CUDA_CARDS, HIP_ARCHES, HIP_CARDS
from deepgen.vocabulary import BadInput, Missing

NAMES = [
    *(f"cuda:{name}" for name in (*CUDA_ARCHES, *CUDA_CARDS)),
    *(f"hip:{name}" for name in (*HIP_ARCHES, *HIP_CARDS)),
]


@pytest.mark.parametrize("name", NAMES)
def test_facts_hold_together(name: str) -> None:
    gpu = targets.resolve(name)
    assert isinstance(gpu, Gpu) and gpu.name == name
    assert gpu.warp in (32, 64) and gpu.threads_per_sm % gpu.warp == 0
    assert 48 << 10 <= gpu.shared_per_block <= gpu.shared_per_sm
    assert gpu.shared_per_block + gpu.shared_reserved <= gpu.shared_per_sm
    assert gpu.registers_per_sm >= gpu.registers_per_thread * gpu.warp
    f32, f64 = gpu.vector_peak("f32") or 0.0, gpu.vector_peak("f64") or 0.0
    assert f32 >= f64 > 0.0
    for dtype, rate in gpu.vector_peaks:
        assert (gpu.peak(dtype) or 0.0) >= rate
    # One multiply-add per lane and clock, two or four times that for packed or dual-issued instructions.
    clock = f32 * 1e9 / (2 * 64 * gpu.multiprocessors)
    assert 0.5e9 < clock < 12e9
    assert targets.from_json(gpu.to_json()) == gpu


def test_every_architecture_has_a_card() -> None:
    assert {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"} <= set(CUDA_ARCHES)
    assert {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100"} == set(HIP_ARCHES)


def test_the_hygon_dcu_is_a_gfx906_with_facts_of_its_own() -> None:
    dcu, mi50 = targets.resolve("hip:z100"), targets.resolve("hip:gfx906")
    assert isinstance(dcu, Hip) and isinstance(mi50, Hip)
    assert dcu.arch == mi50.arch == "gfx906"
    assert (dcu.multiprocessors, mi50.multiprocessors) == (64, 60)
    assert dcu.fingerprint() != mi50.fingerprint()


def test_features_tell_generations_apart() -> None:
    volta, ampere, hopper = (targets.resolve(f"cuda:{arch}") for arch in ("sm_70", "sm_80", "sm_90a"))
    assert isinstance(volta, Cuda) and isinstance(ampere, Cuda) and isinstance(hopper, Cuda)
    assert not volta.has("cp_async") and ampere.has("cp_async", "mma_bf16") and not ampere.has("tma")
    assert hopper.has("tma", "wgmma", "cluster") and not targets.resolve("cuda:sm_90").has("wgmma")  # type: ignore[attr-defined]
    assert (volta.sm, ampere.sm, hopper.sm) == (70, 80, 90)


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(BadInput, match=r"cuda:sm_999.*sm_90a.*h200"):
        targets.resolve("cuda:sm_999")
    with pytest.raises(BadInput, match=r"hip:gfx1.*gfx906.*z100"):
        targets.resolve("hip:gfx1")


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks"),
    [
        # As computed by NVIDIA's occupancy calculator.
        ("cuda:sm_90a", 256, 128, 0, 2),
        ("cuda:sm_90a", 256, 32, 0, 8),
        ("cuda:sm_90a", 128, 255, 0, 2),
        ("cuda:sm_90a", 128, 168, 100 << 10, 2),
        ("cuda:sm_80", 1024, 64, 0, 1),
        ("cuda:sm_80", 1024, 65, 0, 0),
        ("cuda:sm_86", 32, 16, 0, 16),
        # Ten waves per SIMD up to 24 registers on gfx906, eight on gfx90a.
        ("hip:gfx906", 256, 24, 0, 10),
        ("hip:gfx906", 256, 128, 0, 2),
        ("hip:gfx90a", 256, 128, 0, 4),
        ("hip:gfx90a", 256, 64, 32 << 10, 2),
    ],
)
def test_blocks_that_a_multiprocessor_holds(name: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    gpu = targets.resolve(name)
    assert isinstance(gpu, Gpu)
    assert blocks_resident(gpu, threads, registers, shared) == blocks
    assert (
        occupancy(gpu, threads, registers, shared) == blocks * -(-threads // gpu.warp) * gpu.warp / gpu.threads_per_sm
    )


def test_more_than_a_block_may_have_does_not_fit() -> None:
    gpu = targets.resolve("cuda:sm_90a")
    assert isinstance(gpu, Gpu)
    assert blocks_resident(gpu, 128, 32, gpu.shared_per_block) == 1
    assert blocks_resident(gpu, 128, 32, gpu.shared_per_block + 1) == 0
    assert blocks_resident(gpu, 2048, 32, 0) == 0


def test_a_card_found_keeps_what_its_driver_says() -> None:
    limits = {"multiprocessors": 114, "l2_bytes": 1 << 20}
    card = found_cuda("NVIDIA H100 PCIe", 90, 1755, limits)
    assert (card.name, card.arch, card.multiprocessors, card.l2_bytes) == ("cuda:native", "sm_90a", 114, 1 << 20)
    known = targets.resolve("cuda:h100")
    assert isinstance(known, Gpu)
    ratio = (card.peak("f32") or 0.0) / (known.peak("f32") or 1.0)
    assert ratio == pytest.approx(114 * 1755 / (132 * 1980), rel=1e-3)
    with pytest.raises(BadInput, match=r"compute capability 5\.2"):
        found_cuda("NVIDIA Quadro M6000", 52, 1000, limits)


def test_an_amd_card_is_read_from_linux(tmp_path: Path) -> None:
    processor, gpu = tmp_path / "0", tmp_path / "1"
    processor.mkdir()
    gpu.mkdir()
    (processor / "properties").write_text("cpu_cores_count 8\nsimd_count 0\ngfx_target_version 0\n")
    (gpu / "properties").write_text(
        "simd_count 256\nsimd_per_cu 4\nmax_waves_per_simd 10\nwave_front_size 64\nlds_size_in_kb 64\n"
        "gfx_target_version 90006\nvendor_id 7572\n"
    )
    assert host.has_hip(tmp_path)
    card = host.hip(nodes=tmp_path)
    assert (card.arch, card.multiprocessors, card.model) == ("gfx906", 64, "Hygon DCU gfx906")
    with pytest.raises(Missing, match="can be built here but not measured"):
        host.hip(nodes=tmp_path / "none")
    assert host.gpu_memory_bytes(card, nodes=tmp_path) is None, "it does not tell"
    for bank, (heap, size) in enumerate([(1, 16 << 30), (4, 65536)]):
        (gpu / "mem_banks" / str(bank)).mkdir(parents=True)
        (gpu / "mem_banks" / str(bank) / "properties").write_text(f"heap_type {heap}\nsize_in_bytes {size}\n")
    assert host.gpu_memory_bytes(card, nodes=tmp_path) == 16 << 30
    assert host.gpu_memory_bytes(card, nodes=tmp_path / "none") is None


def test_without_a_device_file_no_driver_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_CUDA_NODES", ())
    monkeypatch.setattr(host.ctypes, "CDLL", lambda name: pytest.fail(f"{name} was loaded"))
    assert not host.has_cuda()
    with pytest.raises(Missing, match="NVIDIA GPU"):
        targets.resolve("cuda:native")

"""GPU facts as data: the limits of architectures, and the facts of cards.

Limits of CUDA architectures are from the table of technical specifications per compute capability in NVIDIA's CUDA C++
Programming Guide; granules are from the CUDA occupancy calculator. Limits of AMD architectures are from LLVM's user
guide for the AMDGPU backend, AMD's ISA documents and ROCm's table of accelerator and GPU hardware specifications. Facts
of cards are from the vendors' datasheets and whitepapers: dense rates, boost clocks. The vendor publishes little about
the Hygon DCU Z100: 64 compute units, 32 GB at 1024 GB/s and clocks of up to 1.7 GHz (f32) and 1.5 GHz (f64), from its
prospectus; its rates are derived from these and the instruction set, which is that of gfx906.

These facts were compared with: https://nvidia.github.io/cccl (arch_traits: sm_70 to sm_90); an H200 itself (L2, shared
memory, registers, multiprocessors); https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html (compute units,
LDS, L2 and register files of all Instincts here); https://hmc-tech.com (V100, A100, H100, H200, B200: multiprocessors,
clocks, rates, bandwidth). No second source was found for the rates of the other cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Arch:
    """The limits of an architecture."""

    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    features: tuple[str, ...]
    warp: int = 32
    shared_reserved: int = 0
    shared_granule: int = 128
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_granule: int = 8
    register_files: int = 4
    threads_per_block: int = 1024


@dataclass(frozen=True)
class Card:
    """One product. Rates in TFLOP/s (TOP/s for integers)."""

    arch: str
    model: str
    multiprocessors: int
    clock_mhz: int  # for which the rates hold
    l2_bytes: int
    bandwidth_gbs: float
    vector: Mapping[str, float]
    matrix: Mapping[str, float]  # of matrix units, if there are any


def _cuda(shared: int, threads: int, blocks: int, features: tuple[str, ...]) -> Arch:
    """`shared`: KiB per multiprocessor. From sm_80 on, a block can use all of it except one KiB for the system."""
    recent = "cp_async" in features
    reserved = _KIB if recent else 0
    return Arch(
        shared_per_block=shared * _KIB - reserved,
        shared_per_sm=shared * _KIB,
        shared_reserved=reserved,
        shared_granule=128 if recent else 256,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        features=features,
    )


_SM70 = ("dp4a", "half2", "mma", "mma_f16")
_SM75 = (*_SM70, "ldmatrix", "mma_i8")
_SM80 = (*_SM75, "cp_async", "bf16x2", "mma_bf16", "mma_tf32", "mma_f64", "reduce_add")
_SM89 = (*_SM80, "mma_f8")
_TMA = ("cluster", "tma", "stmatrix")
# Server chips from sm_90 on have 8-bit floats only in larger products: the compiler widens warp-wide ones to f16.
_SM90 = (*_SM89, *_TMA, "mma_f8_widened")
_SM100 = (*_SM90, "ffma2")
_SM120 = (*_SM89, *_TMA, "ffma2")

CUDA_ARCHES: Mapping[str, Arch] = {
    "sm_70": _cuda(96, 2048, 32, _SM70),
    "sm_75": _cuda(64, 1024, 16, _SM75),
    "sm_80": _cuda(164, 2048, 32, _SM80),
    "sm_86": _cuda(100, 1536, 16, _SM80),
    "sm_87": _cuda(164, 1536, 16, _SM80),
    "sm_89": _cuda(100, 1536, 24, _SM89),
    "sm_90": _cuda(228, 2048, 32, _SM90),
    "sm_90a": _cuda(228, 2048, 32, (*_SM90, "wgmma", "setmaxnreg")),
    "sm_100": _cuda(228, 2048, 32, _SM100),
    "sm_100a": _cuda(228, 2048, 32, (*_SM100, "tcgen05", "setmaxnreg")),
    "sm_103": _cuda(228, 2048, 32, _SM100),
    "sm_103a": _cuda(228, 2048, 32, (*_SM100, "tcgen05", "setmaxnreg")),
    "sm_120": _cuda(100, 1536, 24, _SM120),
    "sm_120a": _cuda(100, 1536, 24, (*_SM120, "setmaxnreg")),
}

# The first card of an architecture is the typical one. Rates of 16-bit and 8-bit floats are for accumulation in f32.
CUDA_CARDS: Mapping[str, Card] = {
    "v100": Card("sm_70", "NVIDIA V100 SXM2", 80, 1530, 6 * _MIB, 900.0,
                 {"f64": 7.8, "f32": 15.7, "f16": 31.3, "i8": 62.7}, {"f16": 125.0}),
    "t4": Card("sm_75", "NVIDIA T4", 40, 1590, 4 * _MIB, 320.0,
               {"f64": 0.254, "f32": 8.1, "f16": 16.3, "i8": 32.6}, {"f16": 65.0, "i8": 130.0}),
    "a100": Card("sm_80", "NVIDIA A100-SXM4-80GB", 108, 1410, 40 * _MIB, 2039.0,
                 {"f64": 9.7, "f32": 19.5, "f16": 78.0, "bf16": 39.0, "i8": 78.0},
                 {"f64": 19.5, "tf32": 156.0, "f16": 312.0, "bf16": 312.0, "i8": 624.0}),
    "rtx3090": Card("sm_86", "NVIDIA GeForce RTX 3090", 82, 1695, 6 * _MIB, 936.0,
                    {"f64": 0.556, "f32": 35.6, "f16": 35.6, "bf16": 35.6, "i8": 71.2},
                    {"tf32": 35.6, "f16": 71.0, "bf16": 71.0, "i8": 284.0}),
    "orin": Card("sm_87", "NVIDIA Jetson AGX Orin 64GB", 16, 1300, 4 * _MIB, 204.8,
                 {"f64": 0.083, "f32": 5.3, "f16": 10.6, "bf16": 5.3, "i8": 21.2},
                 {"tf32": 21.3, "f16": 42.6, "bf16": 42.6, "i8": 85.2}),
    "rtx4090": Card("sm_89", "NVIDIA GeForce RTX 4090", 128, 2520, 72 * _MIB, 1008.0,
                    {"f64": 1.29, "f32": 82.6, "f16": 82.6, "bf16": 82.6, "i8": 165.2},
                    {"tf32": 82.6, "f16": 165.2, "bf16": 165.2, "f8e4m3": 330.3, "f8e5m2": 330.3, "i8": 660.6}),
    "h100": Card("sm_90", "NVIDIA H100 80GB HBM3", 132, 1980, 50 * _MIB, 3350.0,
                 {"f64": 33.5, "f32": 66.9, "f16": 133.8, "bf16": 133.8, "i8": 133.8},
                 {"f64": 66.9, "tf32": 494.7, "f16": 989.4, "bf16": 989.4,
                  "f8e4m3": 1978.9, "f8e5m2": 1978.9, "i8": 1978.9}),
    "h200": Card("sm_90", "NVIDIA H200", 132, 1980, 60 * _MIB, 4800.0,
                 {"f64": 33.5, "f32": 66.9, "f16": 133.8, "bf16": 133.8, "i8": 133.8},
                 {"f64": 66.9, "tf32": 494.7, "f16": 989.4, "bf16": 989.4,
                  "f8e4m3": 1978.9, "f8e5m2": 1978.9, "i8": 1978.9}),
    "b200": Card("sm_100", "NVIDIA B200", 148, 1965, 126 * _MIB, 8000.0,
                 {"f64": 37.0, "f32": 75.0, "f16": 150.0, "bf16": 150.0, "i8": 150.0},
                 {"f64": 37.0, "tf32": 1100.0, "f16": 2250.0, "bf16": 2250.0,
                  "f8e4m3": 4500.0, "f8e5m2": 4500.0, "i8": 4500.0}),
    "b300": Card("sm_103", "NVIDIA B300", 148, 1965, 126 * _MIB, 8000.0,
                 {"f64": 1.2, "f32": 75.0, "f16": 150.0, "bf16": 150.0, "i8": 150.0},
                 {"f64": 1.2, "tf32": 1100.0, "f16": 2250.0, "bf16": 2250.0,
                  "f8e4m3": 4500.0, "f8e5m2": 4500.0, "i8": 150.0}),
    "rtx5090": Card("sm_120", "NVIDIA GeForce RTX 5090", 170, 2407, 96 * _MIB, 1792.0,
                    {"f64": 1.64, "f32": 104.8, "f16": 104.8, "bf16": 104.8, "i8": 209.5},
                    {"tf32": 104.8, "f16": 209.5, "bf16": 209.5, "f8e4m3": 419.0, "f8e5m2": 419.0, "i8": 838.0}),
}  # fmt: skip

_GCN = {"warp": 64, "shared_granule": 512, "register_granule": 4, "registers_per_thread": 256}
_CDNA2 = {**_GCN, "register_granule": 8, "registers_per_thread": 512, "registers_per_sm": 131072}
_RDNA = {"warp": 32, "shared_granule": 512, "registers_per_thread": 256, "register_files": 2}
_LDS = 64 * _KIB
_DOTS = ("half2", "dot2", "dot4", "dot8")

# gfx908 and newer have as many accumulation registers, which only matrix instructions use well; from gfx90a on both
# kinds are one file. The two compute units of an RDNA workgroup processor count separately, each with half its LDS.
HIP_ARCHES: Mapping[str, Arch] = {
    "gfx906": Arch(_LDS, _LDS, 2560, 16, _DOTS, **_GCN),
    "gfx908": Arch(_LDS, _LDS, 2560, 16, (*_DOTS, "mfma", "dot2_f32_bf16"), **_GCN),
    "gfx90a": Arch(_LDS, _LDS, 2048, 16, (*_DOTS, "mfma", "mfma_f64", "pk_fma_f32", "dot2_f32_bf16"), **_CDNA2),
    "gfx942": Arch(
        _LDS, _LDS, 2048, 16, (*_DOTS, "mfma", "mfma_f64", "mfma_f8", "pk_fma_f32", "dot2_f32_bf16"), **_CDNA2
    ),
    "gfx1030": Arch(_LDS, _LDS, 1024, 16, _DOTS, **_RDNA),
    "gfx1100": Arch(
        _LDS,
        _LDS,
        1024,
        16,
        (*_DOTS, "wmma", "dot2_f32_bf16"),
        **{**_RDNA, "register_granule": 24, "registers_per_sm": 98304},
    ),
}

HIP_CARDS: Mapping[str, Card] = {
    "mi50": Card("gfx906", "AMD Instinct MI50", 60, 1725, 4 * _MIB, 1024.0,
                 {"f64": 6.6, "f32": 13.3, "f16": 26.5, "i8": 53.0}, {}),
    "radeonvii": Card("gfx906", "AMD Radeon VII", 60, 1750, 4 * _MIB, 1024.0,
                      {"f64": 3.4, "f32": 13.4, "f16": 26.9, "i8": 53.8}, {}),
    "z100": Card("gfx906", "Hygon DCU Z100", 64, 1700, 4 * _MIB, 1024.0,
                 {"f64": 6.1, "f32": 13.9, "f16": 27.8, "i8": 55.7}, {}),
    "mi100": Card("gfx908", "AMD Instinct MI100", 120, 1502, 8 * _MIB, 1228.8,
                  {"f64": 11.5, "f32": 23.1, "f16": 46.1, "i8": 92.3},
                  {"f32": 46.1, "f16": 184.6, "bf16": 92.3, "i8": 184.6}),
    "mi250x": Card("gfx90a", "AMD Instinct MI250X (one die)", 110, 1700, 8 * _MIB, 1638.4,
                   {"f64": 23.9, "f32": 47.9, "f16": 47.9, "i8": 95.7},
                   {"f64": 47.9, "f32": 47.9, "f16": 191.5, "bf16": 191.5, "i8": 191.5}),
    "mi210": Card("gfx90a", "AMD Instinct MI210", 104, 1700, 8 * _MIB, 1638.4,
                  {"f64": 22.6, "f32": 45.3, "f16": 45.3, "i8": 90.5},
                  {"f64": 45.3, "f32": 45.3, "f16": 181.0, "bf16": 181.0, "i8": 181.0}),
    "mi300x": Card("gfx942", "AMD Instinct MI300X", 304, 2100, 32 * _MIB, 5300.0,
                   {"f64": 81.7, "f32": 163.4, "f16": 163.4, "i8": 326.9},
                   {"f64": 163.4, "f32": 163.4, "tf32": 653.7, "f16": 1307.4, "bf16": 1307.4,
                    "f8e4m3": 2614.9, "f8e5m2": 2614.9, "i8": 2614.9}),
    "rx6900xt": Card("gfx1030", "AMD Radeon RX 6900 XT", 80, 2250, 4 * _MIB, 512.0,
                     {"f64": 1.44, "f32": 23.0, "f16": 46.1, "i8": 92.2}, {}),
    "rx7900xtx": Card("gfx1100", "AMD Radeon RX 7900 XTX", 96, 2500, 6 * _MIB, 960.0,
                      {"f64": 1.92, "f32": 61.4, "f16": 122.8, "bf16": 122.8, "i8": 122.8},
                      {"f16": 122.8, "bf16": 122.8, "i8": 122.8}),
}  # fmt: skip

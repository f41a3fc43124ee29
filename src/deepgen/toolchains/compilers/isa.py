"""The compiler flags that a processor's instruction sets ask for.

Spelled out rather than `-march=native`, so that a cached binary means the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable

# Instruction set -> flag, and the first gcc and clang that know it. An older compiler is not given the flag: a kernel
# that needs the instructions then fails with the compiler's own words, and all others build.
_X86: dict[str, tuple[str, int, int]] = {
    "sse2": ("-msse2", 0, 0),
    "avx": ("-mavx", 0, 0),
    "f16c": ("-mf16c", 0, 0),
    "fma": ("-mfma", 0, 0),
    "avx2": ("-mavx2", 0, 0),
    "avx_vnni": ("-mavxvnni", 11, 12),
    "avx512f": ("-mavx512f", 5, 4),
    "avx512bw": ("-mavx512bw", 5, 4),
    "avx512dq": ("-mavx512dq", 5, 4),
    "avx512vl": ("-mavx512vl", 5, 4),
    "avx512_vnni": ("-mavx512vnni", 8, 6),
    "avx512_bf16": ("-mavx512bf16", 10, 9),
    "avx512_fp16": ("-mavx512fp16", 12, 14),
    "amx_tile": ("-mamx-tile", 11, 11),
    "amx_int8": ("-mamx-int8", 11, 11),
    "amx_bf16": ("-mamx-bf16", 11, 11),
}
# The same for Arm, as an extension of -march: gcc's and clang's name, and zig's, where it differs.
_ARM: dict[str, tuple[str, str, int, int]] = {
    "atomics": ("lse", "lse", 6, 4),
    "asimdhp": ("fp16", "fullfp16", 7, 5),
    "asimddp": ("dotprod", "dotprod", 8, 6),
    "bf16": ("bf16", "bf16", 10, 11),
    "i8mm": ("i8mm", "i8mm", 10, 11),
    "sve": ("sve", "sve", 8, 5),
    "sve2": ("sve2", "sve2", 10, 9),
}
# The processor whose instruction costs the scheduler assumes, by the newest instruction set there is.
_TUNE: tuple[tuple[str, str, int, int], ...] = (
    ("amx_tile", "sapphirerapids", 11, 12),
    ("avx512_vnni", "icelake-server", 8, 6),
    ("avx512f", "skylake-avx512", 6, 4),
    ("avx2", "haswell", 0, 0),
)


def isa_flags(machine: str, isa: Iterable[str], family: str, major: int, *, zig: bool = False) -> tuple[str, ...]:
    """The flags for these instruction sets that a compiler of this family and major version knows."""
    present = set(isa)
    if machine == "aarch64":
        known = [
            names for f, (*names, gcc, clang) in _ARM.items() if f in present and _known(family, major, gcc, clang)
        ]
        # gcc's header has dot products and half precision from 8.2 on; zig reads -march as the name of a processor.
        base = "-march=armv8.2-a" if present & {"asimdhp", "asimddp"} else "-march=armv8-a"
        return ("+".join(("-mcpu=generic" if zig else base, *(str(names[zig]) for names in known))),)
    chosen = [flag for name, (flag, *since) in _X86.items() if name in present and _known(family, major, *since)]
    if "-mavx512f" in chosen and _known(family, major, 8, 6):
        # The tunings would vectorise loops in 256 bits, though every target with 512 has full-width units.
        chosen.append("-mprefer-vector-width=512")
    return tuple(chosen)


def tuning_flags(isa: Iterable[str], family: str, major: int) -> tuple[str, ...]:
    """The flag that has instructions scheduled for the newest processor these instruction sets point to."""
    present = set(isa)
    known = (cpu for name, cpu, *since in _TUNE if name in present and _known(family, major, *since))
    return (f"-mtune={next(known, 'generic')}",)


def _known(family: str, major: int, gcc: int, clang: int) -> bool:
    return major >= (gcc if family == "gcc" else clang)

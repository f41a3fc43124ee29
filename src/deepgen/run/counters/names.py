"""Which counters are asked for: their names, and what `default` stands for on each kind of device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from deepgen.targets import Target
from deepgen.vocabulary import BadInput

DEFAULT, MIX, OCCUPANCY = "default", "mix", "occupancy"
OF_MIX = f"{MIX}."  # what the disassembly tells
OF_RECORD = "record."  # before an event: by the samples that `perf record` takes of it on a board
MIX_NAMES = tuple(
    OF_MIX + part for part in ("instructions", "vector", "matrix", "loads", "stores", "branches", "other")
)
ALLOWED = f"{DEFAULT}, {MIX}, or names as the device's own tool has them: perf list, ncu --query-metrics, rocprofv3 -L"

_PROCESSOR = (
    "cycles", "instructions", "branches", "branch-misses",
    "cache-references", "cache-misses", "L1-dcache-loads", "L1-dcache-load-misses",
    "LLC-loads", "LLC-load-misses", "dTLB-load-misses",
    "task-clock", "page-faults", "context-switches",
)  # fmt: skip
# Of vector units and caches, as perf names them on boards with SpacemiT's X60; of the last, samples are taken.
_BOARD = (
    "u_mode_cycle", "eu_vfpu_full", "vidu_total_cycle", "vector_micro_op", "vector_load_inst", "vector_store_inst",
    "vector_inst", "l1d_load_miss", "l1d_load_access", "l1d_access", "l1d_miss",
    "record.l2_access", "record.l2_miss", "record.l2_load_access", "record.l2_store_access",
)  # fmt: skip
_NVIDIA = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum", "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum", "lts__t_sector_hit_rate.pct",
    "l1tex__t_sector_hit_rate.pct", "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "launch__registers_per_thread", "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem",
)  # fmt: skip
_AMD = (
    "GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_INSTS_VALU", "SQ_INSTS_SALU", "SQ_INSTS_LDS", "SQ_INSTS_VMEM_RD",
    "SQ_INSTS_VMEM_WR", "SQ_LDS_BANK_CONFLICT", "TCC_HIT_sum", "TCC_MISS_sum",
)  # fmt: skip
_BY_LANGUAGE = {"c": _PROCESSOR, "cuda": _NVIDIA, "hip": _AMD}
_BY_RUNNER = {"gpu": (OCCUPANCY,), "riscv": _BOARD}

_COMMA = re.compile(r",(?=(?:[^/]*/[^/]*/)*[^/]*$)")  # outside of cpu/event=0x3c,umask=0x1/
_NAME = re.compile(r"[A-Za-z][\w.:/=,-]*")


def given(counters: str | Sequence[str] | None) -> tuple[str, ...]:
    """What a user asked for, each name once. Raises BadInput for what no counter is called."""
    if counters is None:
        return ()
    words = _COMMA.split(counters) if isinstance(counters, str) else counters
    if not isinstance(words, (list, tuple)) or not words:
        raise BadInput(f"counters is {counters!r}", allowed=ALLOWED)
    for word in words:
        if not isinstance(word, str) or not _NAME.fullmatch(word.strip()):
            raise BadInput(f"counters has {word!r}", allowed=ALLOWED)
    return _once(word.strip() for word in words)


def events(names: Iterable[str], target: Target) -> tuple[str, ...]:
    """The counters meant by these names on a target: groups spelled out, each name once."""
    # What stands in place of times has no events of a processor either.
    counted = () if target.proxy else (*_BY_LANGUAGE.get(target.languages[0], ()), *_BY_RUNNER.get(target.runner, ()))
    default = (*counted, *MIX_NAMES)
    meant = {DEFAULT: default, MIX: MIX_NAMES}
    return _once(one for name in names for one in meant.get(name, (name,)))


def is_static(event: str) -> bool:
    """Whether no run is needed for it."""
    return event == OCCUPANCY or event.startswith(OF_MIX)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

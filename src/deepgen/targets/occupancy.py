"""How many blocks of a kernel a multiprocessor holds: from its limits and the build's statistics of the kernel."""

from __future__ import annotations

from deepgen.targets.gpu import Gpu


def blocks_resident(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """Blocks of that many threads, registers a thread and shared bytes that one multiprocessor holds at a time."""
    if threads > gpu.threads_per_block or registers > gpu.registers_per_thread or shared > gpu.shared_per_block:
        return 0
    warps = _ceil(threads, gpu.warp)
    by_shared = gpu.shared_per_sm // max(_round(shared + gpu.shared_reserved, gpu.shared_granule), 1)
    return min(gpu.blocks_per_sm, warps_by_registers(gpu, registers) // warps, _most_warps(gpu) // warps, by_shared)


def warps_by_registers(gpu: Gpu, registers: int) -> int:
    """How many warps of threads with that many registers fit in one multiprocessor's registers."""
    each = _round(max(registers, 1), gpu.register_granule) * gpu.warp
    return gpu.register_files * (gpu.registers_per_sm // gpu.register_files // each)


def occupancy(gpu: Gpu, threads: int, registers: int, shared: int) -> float:
    """The share of a multiprocessor's warps that can be resident."""
    return blocks_resident(gpu, threads, registers, shared) * _ceil(threads, gpu.warp) / _most_warps(gpu)


def _most_warps(gpu: Gpu) -> int:
    return gpu.threads_per_sm // gpu.warp


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def _round(value: int, to: int) -> int:
    return _ceil(value, to) * to

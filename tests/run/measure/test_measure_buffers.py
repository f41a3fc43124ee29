"""No byte outside a buffer can be written unnoticed, and aligned buffers are aligned."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest

from deepgen.run.measure.guarded import Guarded

SIZES = [1, 4, 60, 64, 100, 4092, 4096, 4100, 65536, 5_000_000]


@pytest.mark.parametrize("align", [1, 4, 64, 4096])
@pytest.mark.parametrize("size", SIZES)
def test_buffers_are_aligned_and_end_as_close_to_the_guard_as_that_allows(size: int, align: int) -> None:
    buffer = Guarded("C", size, align)
    assert buffer.start % align == 0
    assert -(buffer.start + size) % mmap.PAGESIZE < align
    buffer.all.fill(7)
    assert buffer.damage() is None
    buffer.close()


@pytest.mark.parametrize("size", [1, 4, 60, 100, 4100, 5_000_004])
def test_a_byte_on_either_side_is_noticed_once(size: int) -> None:
    buffer = Guarded("C", size)
    for offset, words in ((-1, "before the start of C (at byte -1)"), (size, f"past the end of C (at byte {size}")):
        ctypes.memset(buffer.start + offset, 0, 1)
        assert words in str(buffer.damage())
        assert buffer.damage() is None
    buffer.close()


@pytest.mark.parametrize(
    "act",
    [
        "ctypes.memset(b.start + b.bytes, 0, 1)",
        "ctypes.memset(b.start - 1, 0, 1)",
        "ctypes.string_at(b.start + b.bytes + (1 << 20), 1)",
        "b.protect(read_only=True); ctypes.memset(b.start, 0, 1)",
        "b.allow_reads(True); ctypes.memset(b.start + b.bytes, 0, 1)",
        "b.allow_reads(True); b.allow_reads(False); ctypes.string_at(b.start + b.bytes, 1)",
    ],
)
def test_guards_trap(act: str) -> None:
    script = f"import ctypes; from deepgen.run.measure.guarded import Guarded; b = Guarded('C', 4096); {act}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -11


def test_what_lies_around_a_buffer_can_be_read_while_others_are_timed() -> None:
    buffer = Guarded("A", 4096)
    buffer.allow_reads(True)
    assert ctypes.string_at(buffer.start + buffer.bytes, 4096) == bytes(4096)
    assert ctypes.string_at(buffer.start - 4096, 4096) == bytes(4096)
    buffer.close()


def test_a_read_only_buffer_can_still_be_read() -> None:
    buffer = Guarded("A", 400)
    array = buffer.array((10, 10), np.dtype(np.float32))
    array[...] = np.arange(100).reshape(10, 10)
    buffer.protect(read_only=True)
    assert array.sum() == 4950
    buffer.close()


def test_more_memory_than_there_is_is_an_error_in_words() -> None:
    with pytest.raises(MemoryError, match=r"no memory for the \d+ bytes of workspace w"):
        Guarded("workspace w", 1 << 52)

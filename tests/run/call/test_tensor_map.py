"""Tensor maps follow their tensors' addresses, and the driver is asked once for each address."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from deepgen.run.call import gpu_kernel
from deepgen.targets.gpu_driver import CUDA
from deepgen.vocabulary import DescriptorArg, TensorMapSpec


def test_a_map_is_encoded_once_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernel, "_MOST", 3)
    asked: list[int] = []

    def encode(storage: Any, kind: int, rank: int, address: Any, *rest: Any) -> int:
        asked.append(address.value)
        storage.raw = struct.pack("<2Q", address.value, rank).ljust(128, b"\0")
        return 0

    driver: Any = SimpleNamespace(
        api=CUDA, library=SimpleNamespace(cuTensorMapEncodeTiled=encode), check=lambda name, code: None
    )
    made = gpu_kernel.encode(driver, DescriptorArg("A", TensorMapSpec((8, 8))), 256, (16, 16), "bf16", {})
    for address in (512, 256, 512, 512, 768, 256):
        made.slot.value = address
        assert struct.unpack("<2Q", made.storage.raw[:16]) == (address, 2)
    assert asked == [256, 512, 768]
    made.slot.value = 1024
    made.slot.value = 512
    assert struct.unpack("<Q", made.storage.raw[:8]) == (512,)
    assert asked == [256, 512, 768, 1024, 512], "only so many are kept"

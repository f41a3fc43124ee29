"""Tensor maps follow their tensors' addresses, and the driver is called once per address."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from plain_operators import Double

from deepgen.run.call import compiled, gpu_kernel
from deepgen.run.call.arrays import View
from deepgen.run.call.firing import Apart, BoundCall, firing
from deepgen.targets.gpu_driver import CUDA
from deepgen.vocabulary import DescriptorArg, TensorMapSpec


def encoded_by(asked: list[int]) -> gpu_kernel.Descriptor:
    """A map whose driver records the addresses it is called with."""

    def encode(storage: Any, kind: int, rank: int, address: Any, *rest: Any) -> int:
        asked.append(address.value)
        storage.raw = struct.pack("<2Q", address.value, rank).ljust(128, b"\0")
        return 0

    driver: Any = SimpleNamespace(
        api=CUDA, library=SimpleNamespace(cuTensorMapEncodeTiled=encode), check=lambda name, code: None
    )
    return gpu_kernel.encode(driver, DescriptorArg("A", TensorMapSpec((8, 8))), 256, (16, 16), "bf16", {})


def test_a_map_is_encoded_once_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernel, "_MOST", 3)
    asked: list[int] = []
    made = encoded_by(asked)
    for address in (512, 256, 512, 512, 768, 256):
        made.slot.value = address
        assert struct.unpack("<2Q", made.storage.raw[:16]) == (address, 2)
    assert asked == [256, 512, 768]
    made.slot.value = 1024
    made.slot.value = 512
    assert struct.unpack("<Q", made.storage.raw[:8]) == (512,)
    assert asked == [256, 512, 768, 1024, 512], "only so many are kept"


@pytest.mark.parametrize("way", ["compiled", "in Python"])
def test_a_bound_kernel_finds_the_map_of_each_address(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "compiled":
        monkeypatch.setattr(compiled, "core", lambda: None)
    asked, seen = list[int](), list[int]()
    made = encoded_by(asked)
    call = BoundCall(
        {"x": [made.slot]}, lambda stream: None, lambda: seen.append(*struct.unpack("<Q", made.storage[:8]))
    )
    views = {"x": View(0, (4, 4), (4, 1), "f32", "gpu")}
    fire = firing(call, ["x"], Apart(views, Double().signature()))
    chance = random.Random(1)
    few = [256 * chance.randrange(1, 1 << 40) for _ in range(60)]
    addresses = [chance.choice(few) for _ in range(2000)]
    for address in addresses:
        fire((address,), 0)
    assert seen == addresses
    assert sorted({256, *few}) == sorted(asked), "the driver is asked once for each"

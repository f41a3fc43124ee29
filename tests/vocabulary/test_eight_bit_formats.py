"""8-bit floats on the host: if one code were read or rounded wrongly, correct kernels would be judged wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen.vocabulary.dtypes import DType, dtype, narrow, widen

CODES = np.arange(256, dtype=np.uint8)
both = pytest.mark.parametrize("of", [dtype("f8e4m3"), dtype("f8e5m2")], ids=str)


def finite(of: DType) -> np.ndarray:
    """The numbers of a format from 0 up; each one's index is its code."""
    positive = widen(CODES[:128], of)
    return positive[np.isfinite(positive)]


def slowly(value: float, of: DType) -> int:
    """The nearest code by exhaustive search; of two equally near ones the even one."""
    away = np.abs(finite(of) - abs(value))
    nearest = min(np.flatnonzero(away == away.min()), key=lambda code: code % 2)
    return int(nearest) | (0x80 if np.signbit(value) else 0)


@pytest.mark.parametrize(
    ("name", "largest", "normal", "smallest"),
    [("f8e4m3", 448.0, 2.0**-6, 2.0**-9), ("f8e5m2", 57344.0, 2.0**-14, 2.0**-16)],
)
def test_the_formats_are_those_that_gpus_have(name: str, largest: float, normal: float, smallest: float) -> None:
    of = dtype(name)
    numbers = finite(of)
    assert (numbers[0], numbers[1], numbers[-1]) == (0.0, smallest, largest)
    assert numbers[round(1 / of.epsilon)] == normal and (np.diff(numbers) > 0).all()
    assert widen(narrow(np.array([1.0 + of.epsilon]), of), of) == 1.0 + of.epsilon


@both
def test_every_code_goes_round(of: DType) -> None:
    meant = widen(CODES, of)
    back = narrow(meant, of)
    number = ~np.isnan(meant)
    assert np.array_equal(back[number], CODES[number])  # including both zeros, and infinities if there are any
    assert np.isnan(widen(back[~number], of)).all() and np.array_equal(back[~number] >> 7, CODES[~number] >> 7)
    assert number.sum() == {"f8e4m3": 254, "f8e5m2": 250}[of.name]


@both
def test_halves_go_to_the_even_code_and_what_is_beside_them_to_the_nearest(of: DType) -> None:
    numbers = finite(of)
    half = (numbers[1:] + numbers[:-1]) / 2
    below = CODES[: len(half)]
    assert np.array_equal(narrow(half, of), below + below % 2)
    # In f32 these would be ties again: numbers are rounded only once.
    assert np.array_equal(narrow(np.nextafter(half, 0.0), of), below)
    assert np.array_equal(narrow(np.nextafter(half, np.inf), of), below + 1)


@both
@given(st.floats(-448.0, 448.0), st.integers(-20, 0), st.sampled_from([np.float64, np.float32, np.float16]))
def test_rounding_is_to_the_nearest(of: DType, value: float, power: int, wide: type) -> None:
    values = np.array([value * 2.0**power, value], wide)
    assert narrow(values, of).tolist() == [slowly(float(v), of) for v in values]


@both
@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
def test_rounding_keeps_the_order(of: DType, values: list[float]) -> None:
    rounded = widen(narrow(np.sort(values), of), of)
    assert (rounded[1:] >= rounded[:-1]).all()


def test_what_is_too_large_and_what_is_no_number() -> None:
    large = np.array([464.0, 465.0, 57344.0, 61439.0, 61440.0, 1e30, np.inf])
    saturated = widen(narrow(np.concatenate([large, -large]), dtype("f8e4m3")), dtype("f8e4m3"))
    assert saturated.tolist() == [448.0] * 7 + [-448.0] * 7
    overflown = widen(narrow(-large, dtype("f8e5m2")), dtype("f8e5m2"))
    assert overflown.tolist() == [-448.0, -448.0, -57344.0, -57344.0, -np.inf, -np.inf, -np.inf]
    for name in ("f8e4m3", "f8e5m2"):
        assert narrow(np.array([np.nan, -np.nan], np.float32), dtype(name)).tolist() == [0x7F, 0xFF]


@both
def test_torch_agrees(of: DType) -> None:
    torch = pytest.importorskip("torch")
    theirs = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}[of.name]
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(200_000) * np.exp2(rng.uniform(-20.0, 20.0, 200_000))).astype(np.float32)
    if of.name == "f8e4m3":  # torch gives NaN beyond
        values = values[np.abs(values) <= 464.0]
    assert np.array_equal(narrow(values, of), torch.from_numpy(values).to(theirs).view(torch.uint8).numpy())
    assert np.array_equal(widen(CODES, of), torch.from_numpy(CODES).view(theirs).double().numpy(), equal_nan=True)

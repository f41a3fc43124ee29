"""The measured bounds of this machine: a share of peak can be shown, and the peak is measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepgen import targets
from deepgen.operators import gemm
from deepgen.run.measure import peak, peak_gflops
from deepgen.run.measure.peak import MeasuredBounds, cpu_bounds
from deepgen.targets import Cpu
from deepgen.toolchains import Cache
from deepgen.vocabulary import BadInput

NATIVE = targets.resolve("cpu")
assert isinstance(NATIVE, Cpu)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that keeps the bounds of f32 from the first measurement on."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(folder: Path) -> Cache:
    return Cache(folder)


@pytest.fixture
def kept(folder: Path, cache: Cache) -> Path:
    cpu_bounds(NATIVE, "f32", 1, cache=cache)
    [file] = (folder / "peak").glob("*f32*")
    return file


def test_both_bounds_are_found_and_kept(cache: Cache, kept: Path) -> None:
    first = cpu_bounds(NATIVE, "f32", 1, cache=cache)
    assert first.gflops > 1 and first.gbytes_per_second > 0.1
    assert cpu_bounds(NATIVE, "f32", 1, cache=cache) == first, "measured again instead of read"
    assert json.loads(kept.read_text()) == vars(first)


def test_a_bound_that_is_measured_again_never_falls(cache: Cache, kept: Path) -> None:
    high = MeasuredBounds(
        gflops_zeros=1e6, gflops_random=0.1, gbytes_per_second=1e6
    )  # the same machine at a better moment
    kept.write_text(json.dumps(vars(high)))
    again = cpu_bounds(NATIVE, "f32", 1, again=True, cache=cache)
    assert (again.gflops, again.gbytes_per_second) == (1e6, 1e6) and again.gflops_random > 1
    assert cpu_bounds(NATIVE, "f32", 1, cache=cache) == again


def test_a_torn_file_is_measured_anew(cache: Cache, kept: Path) -> None:
    kept.with_name(kept.name.replace("f32", "f64")).write_text('{"gflops": 1')
    assert cpu_bounds(NATIVE, "f64", 1, cache=cache).gflops > 0


def test_a_dtype_without_a_loop_is_an_error_or_no_peak(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="f32"):
        cpu_bounds(NATIVE, "f16", 1, cache=Cache(tmp_path))
    for plain in ("x86:avx2", "arm:neon"):  # without dot products of 8-bit integers
        assert peak_gflops(gemm(8, 8, 8, dtype="i8"), targets.resolve(plain), cache=Cache(tmp_path)) is None
    # Its half-precision units are faster than f32, by an unmeasured factor.
    assert peak_gflops(gemm(8, 8, 8, dtype="f16"), targets.resolve("arm:neon_dot"), cache=Cache(tmp_path)) is None


@pytest.mark.parametrize(("bf16", "quicker"), [(89.0, "f32"), (358.0, "bf16")])
def test_bf16_that_is_quicker_as_f32_is_no_impossible_speed(
    bf16: float, quicker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = targets.resolve("x86:avx512_bf16")
    peaks = {"bf16": bf16, "f32": 179.0}
    monkeypatch.setattr(peak, "cpu_bounds", lambda target, name, threads, **_: MeasuredBounds(0.0, peaks[name], 1.0))
    assert peak_gflops(gemm(8, 8, 8, dtype="bf16"), vectors) == peaks[quicker]


@pytest.mark.parametrize("name", ["bf16", "i8"])
def test_tiles_have_a_peak_of_their_own_where_there_are_any(tmp_path: Path, name: str) -> None:
    if not NATIVE.has("amx_tile", "amx_bf16", "amx_int8"):
        pytest.skip("this processor has no AMX tiles to measure")
    assert "-DTILES=1" in peak._kernel(name, NATIVE).flags
    # Not more than vectors give: other processes on the same CPU can take nearly all of its tile throughput.
    assert cpu_bounds(NATIVE, name, 1, cache=Cache(tmp_path)).gflops > 1

"""A kernel called as a Python function: any operator, many shapes, arrays of any library, and clear errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_operators import (
    CPU,
    DOUBLE,
    GEMM,
    GEMM_MORE,
    NORM,
    WEIGHTED,
    Add,
    Double,
    Norm,
    Ones,
    Weighted,
    Windows,
    add,
    add_dense,
    plain,
    tensors,
)

from deepgen.operators import gemm
from deepgen.run.call import compiled
from deepgen.run.call.loaded import Loaded, load
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, ScalarArg, Source


@pytest.fixture(scope="module", params=["compiled", "in Python"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with the compiled path, if available, and with the Python path."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "compiled":
            patch.setattr(compiled, "core", lambda: None)
        yield


@pytest.fixture(scope="module")
def multiply(way: None) -> Loaded:
    return load(GEMM, gemm(32, 32, 32), CPU)


@pytest.fixture(scope="module")
def norm(way: None) -> Loaded:
    return load(NORM, Norm(), CPU)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def test_calls_follow_their_arrays_and_shapes_from_any_thread(multiply: Loaded) -> None:
    def wrong(seed: int) -> bool:
        m, n, k = 1 + seed % 50, 1 + seed % 37, 1 + seed % 61
        a, b = normal(m, k), normal(k, n)
        return not np.allclose(multiply(a, b), a @ b, atol=1e-3)

    with ThreadPoolExecutor(3) as pool:
        assert not any(pool.map(wrong, [*range(30), *range(30)]))


def test_gemm_is_called_by_its_names() -> None:
    call = load(GEMM_MORE, gemm(8, 8, 8, bias=True, beta=0.5), CPU)
    a, b, bias, c = normal(3, 5), normal(5, 7), normal(7), normal(3, 7)
    want = a @ b + bias + 0.5 * c
    for given in ({"out": c.copy()}, {"C": c.copy()}):
        [out] = given.values()
        assert call(a, b, bias=bias, **given) is out
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(call(a, b, bias, c.copy()), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match=r"needs C \(pass it as out=\)"):
        call(a, b, bias=bias)
    with pytest.raises(BadInput, match=r"needs bias \(pass it as bias=\)"):
        call(a, b, out=c)
    with pytest.raises(BadInput, match=r"bias has N=5 .* but B has N=7"):
        call(a, b, bias=bias[:5].copy(), out=c)


def test_several_outputs_optional_inputs_and_scalars(norm: Loaded) -> None:
    x, shift = normal(3, 6), normal(6)
    y, mean = norm(x)
    np.testing.assert_allclose(mean, x.mean(1), atol=1e-6)
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True) + 0.5, atol=1e-5)
    y, _ = norm(x, shift=shift, eps=0.25)
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True) + 0.25 + shift, atol=1e-5)
    own = np.empty((3, 6), np.float32), np.empty(3, np.float32)
    assert norm(x, out=own)[0] is own[0] and norm(x, shift=None, out={"mean": own[1]})[1] is own[1]
    np.testing.assert_allclose(own[1], x.mean(1), atol=1e-6)
    with pytest.raises(BadInput, match=r"out does not match .*y, mean: a tuple"):
        norm(x, out=own[0])
    with pytest.raises(BadInput, match="out has 'z'"):
        norm(x, out={"z": own[0]})
    with pytest.raises(BadInput, match=r"eps is 2.0 \(0.0 to 1.0\)"):
        norm(x, eps=2.0)
    with pytest.raises(BadInput, match="eps is 'much'"):
        norm(x, eps="much")
    with pytest.raises(BadInput, match=r"the kernel has no parameter gamma \(one of x, shift, y, mean, eps"):
        norm(x, gamma=x)
    with pytest.raises(BadInput, match="by position, not 2"):
        norm(x, shift)
    with pytest.raises(BadInput, match="y overlaps x"):
        norm(x, out=(x, own[1]))
    with pytest.raises(BadInput, match="y overlaps mean, which is written too"):
        norm(x, out=(own[0], own[0][0, :3]))


def test_what_is_read_and_written_is_changed_in_place_and_returned() -> None:
    call = load(DOUBLE, Double(), CPU)
    x = np.ones((4, 6), np.float32)
    assert call(x) is x and (x == 2).all()
    every = x[::2, ::3]  # the parameter takes any strides
    call(every)
    assert (every == 4).all() and x.sum() == 4 * 6 * 2 + 4 * 2
    with pytest.raises(BadInput, match="x is written, but its elements overlap in memory"):
        call(np.lib.stride_tricks.as_strided(x, (4, 6), (0, 4)))
    x.flags.writeable = False
    with pytest.raises(BadInput, match="x is read-only"):
        call(x)


def test_broadcasting_follows_the_declaration_and_what_the_kernel_is_told() -> None:
    call, dense = load(add(), Add(), CPU), load(add_dense(), Add(), CPU)
    x = normal(3, 5)
    for y in (normal(3, 5), normal(1, 5), normal(3, 1), normal(5)):
        np.testing.assert_array_equal(call(x, y), x + y)
    np.testing.assert_array_equal(dense(x, normal(3, 5)), x + normal(3, 5))
    with pytest.raises(BadInput, match="y has a stride of 0 along dimension 0, which kernel add does not take"):
        dense(x, normal(1, 5))
    with pytest.raises(BadInput, match=r"y has rows=2 .* but x has rows=3"):
        call(x, normal(2, 5))


def test_an_output_may_lie_only_where_that_is_declared(multiply: Loaded) -> None:
    call = load(add(), Add(), CPU)
    x, y = normal(4, 4), normal(4, 4)
    want = x + y
    assert (call(x, y, out=x) == want).all()
    with pytest.raises(BadInput, match="out overlaps y, which is read"):
        call(x, y, out=y)
    both = np.ones((64, 32), np.float32)
    with pytest.raises(BadInput, match="out overlaps x"):  # in place, element by element, or not at all
        call(both[:32], both[32:].copy(), out=both[1:33])
    a, b, over = both[:32], both[32:], both[16:48]
    for _ in range(2):
        for out, name in ((a, "A"), (b, "B"), (over, "A")):
            with pytest.raises(BadInput, match=f"out overlaps {name}, which is read"):
                multiply(a, b, out=out)
        assert (multiply(a, b, out=np.empty((32, 32), np.float32)) == 32).all()


def test_zero_sizes_run_nothing(multiply: Loaded, norm: Loaded) -> None:
    assert multiply(normal(0, 5), normal(5, 7)).shape == (0, 7)
    out = np.empty((3, 0), np.float32)
    assert multiply(normal(3, 5), normal(5, 0), out=out) is out
    with pytest.raises(BadInput, match=r"A has no elements \(3x0\), but C has \(3x7\)"):
        multiply(normal(3, 0), normal(0, 7))
    y, mean = norm(normal(0, 4))
    assert (y.shape, mean.shape) == ((0, 4), (0,))
    with pytest.raises(BadInput, match=r"x has no elements \(4x0\), but mean has \(4\)"):
        norm(normal(4, 0))
    assert multiply.workspace_bytes(normal(0, 5), normal(5, 7)) == 0
    text = "void windows(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = x[i]; }"
    windows = load(plain("windows", text, *tensors("x", "y"), ScalarArg("i64", "n - k + 1")), Windows(), CPU)
    assert windows(normal(5)).shape == (3,) and windows(normal(2)).shape == (0,)
    with pytest.raises(BadInput, match="y would have the size -1"):
        windows(normal(1))
    made = [windows(normal(9)) for _ in range(9)]
    assert all(y.ctypes.data % 256 == 0 and y.shape == (7,) for y in made), "as the parameter asks"
    with pytest.raises(BadInput, match="y is not 256-byte aligned"):
        windows(normal(8), out=made[0][1:])


def test_an_operator_that_reads_nothing_is_told_where_to_write() -> None:
    call = load(plain("ones", "void ones(float *y) { *y = 1; }", *tensors("y")), Ones(), CPU)
    out = np.zeros(3, np.float32)
    assert call(out=out) is out and out[0] == 1
    with pytest.raises(BadInput, match="has no inputs, so the device to use is unknown"):
        call()


def test_what_does_not_fit_is_said_by_name(multiply: Loaded) -> None:
    a, b = normal(4, 5), normal(5, 6)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"B has K=4 .* but A has K=5"):
            multiply(a, normal(4, 6))
        with pytest.raises(BadInput, match=r"A is f64 4x5 \(f32\)"):
            multiply(a.astype(np.float64), b)
        with pytest.raises(BadInput, match="A is complex64 4x5"):
            multiply(a.astype(np.complex64), b)
        with pytest.raises(BadInput, match="A is not a contiguous row-major array"):
            multiply(normal(5, 4).T, b)
        with pytest.raises(BadInput, match=r"C has N=5 .* but B has N=6"):
            multiply(a, b, out=np.empty((4, 5), np.float32))
        with pytest.raises(BadInput, match="A is not an array but a list"):
            multiply([[1.0]], b)
        with pytest.raises(BadInput, match="needs B"):
            multiply(a)
        with pytest.raises(BadInput, match="byte order"):
            multiply(a.astype(">f4"), b)
        with pytest.raises(BadInput, match="this kernel runs on the CPU"):
            multiply(a, b, stream=0)
        with pytest.raises(BadInput, match="A is given twice"):
            multiply(a, b, A=a)
    shifted = np.empty(4 * 5 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 5)
    with pytest.raises(BadInput, match=r"A is not 4-byte aligned \(pass an aligned copy\)"):
        multiply(shifted, b)


def test_a_tensor_may_come_from_a_global_variable_of_the_library() -> None:
    call = load(WEIGHTED, Weighted(), CPU)
    for n in (4, 64, 7):
        x, w = normal(n), normal(n)[::-1].copy()
        np.testing.assert_array_equal(call(x, w), x * w)

    def wrong(seed: int) -> bool:
        x, w = normal(60), np.full(60, seed, np.float32)
        return bool((call(x, w) != x * w).any())

    with ThreadPoolExecutor(3) as pool:
        assert not any(pool.map(wrong, range(60)))
    with pytest.raises(BadInput, match="w takes 260 bytes, but weights has 256"):
        call(normal(65), normal(65))


def test_workspaces_can_be_asked_for(norm: Loaded, multiply: Loaded) -> None:
    assert norm.workspace_bytes(normal(10, 3)) == 40
    assert multiply.workspace_bytes(normal(2, 3), normal(3, 4)) == 0


def test_a_loaded_kernel_says_what_it_is(multiply: Loaded) -> None:
    assert repr(multiply) == "<deepgen kernel multiply for gemm f32 nn 32x32x32 on the cpu: kernel(A, B) -> C>"


def test_kernels_that_no_process_can_call_are_refused() -> None:
    kernel = Kernel("simulated", "sim", (Source("k", ""),), (), LaunchPlan(()))
    with pytest.raises(DeepgenError, match="cannot be called from this process"):
        load(kernel, gemm(2, 2, 2), CPU)


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


def test_arrays_with_dlpack_alone_are_taken_and_need_an_output(multiply: Loaded) -> None:
    a, b, out = normal(4, 5), normal(5, 6), np.empty((4, 6), np.float32)
    multiply(OnlyDlpack(a), OnlyDlpack(b), out=OnlyDlpack(out))
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match=r"cannot allocate C for arrays of type OnlyDlpack \(pass it as out="):
        multiply(OnlyDlpack(a), OnlyDlpack(b))


FORMATS = [
    ("f64", "double", "float64"),
    ("f32", "float", "float32"),
    ("i8", "signed char", "int8"),
    ("i32", "int", "int32"),
    ("bf16", "unsigned short", "bfloat16"),
    ("f8e4m3", "unsigned char", "float8_e4m3fn"),
]


@pytest.mark.parametrize(("of", "c_type", "theirs"), FORMATS)
def test_tensors_of_torch_give_tensors_of_torch(of: str, c_type: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    call = load(add(c_type), Add(of=of), CPU)  # bits are added as integers: 0 changes nothing
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, theirs))
    for _ in range(2):
        z = call(x, torch.zeros_like(x))
        assert z.dtype == x.dtype and torch.equal(z.to(torch.float64), x.to(torch.float64))
        out = torch.empty_like(x)
        assert call(x, torch.zeros_like(x), out=out) is out and torch.equal(out.double(), x.double())
    with pytest.raises(BadInput, match="x is not a contiguous row-major array"):
        call(x.T, torch.zeros_like(x).T)
    with pytest.raises(BadInput, match=r"x has the layout torch.sparse"):
        call(x.to(torch.float32).to_sparse(), x)


@pytest.mark.parametrize(("of", "c_type", "theirs"), FORMATS)
def test_arrays_of_numpy_give_arrays_of_the_same_kind(of: str, c_type: str, theirs: str) -> None:
    call = load(add(c_type), Add(of=of), CPU)
    bits = np.arange(12, dtype=np.uint16 if of == "bf16" else np.uint8 if of.startswith("f8") else theirs).reshape(3, 4)
    z = call(bits, np.zeros_like(bits))
    assert z.dtype == bits.dtype and (z == bits).all()
    if of not in ("bf16", "f8e4m3"):
        return
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(12).reshape(3, 4).astype(getattr(ml_dtypes, theirs))
    for _ in range(2):
        z = call(x, np.zeros_like(x))
        assert z.dtype == x.dtype and (z == x).all()
    with pytest.raises(BadInput, match="y is f16"):
        call(x, x.astype(np.float16))


@pytest.mark.parametrize("theirs", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_of_ml_dtypes_give_its_bfloat16(theirs: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = """
void first(const unsigned char *A, const unsigned char *B, unsigned short *C, long M, long N, long K) {
    for (long i = 0; i < M * N; i++) C[i] = 0x3f80;
}
"""
    call = load(plain("first", text, *GEMM.plan.steps[0].args), gemm(8, 8, 8, dtype=theirs), CPU)
    a, b = (np.ones(shape, getattr(ml_dtypes, theirs)) for shape in ((8, 4), (4, 8)))
    c = call(a, b)
    assert c.dtype == ml_dtypes.bfloat16 and (c == 1.0).all()
    assert call(a.view(np.uint8), b).dtype == ml_dtypes.bfloat16  # one of them is sufficient
    bits = call(a.view(np.uint8), b.view(np.uint8))
    assert bits.dtype == np.uint16 and (bits == 0x3F80).all()
    out = np.empty((8, 8), np.uint16)
    assert call(a, b, out=out) is out and (out == 0x3F80).all()


def test_results_wider_than_the_inputs_are_made_too() -> None:
    torch = pytest.importorskip("torch")
    text = """
void wide(const signed char *A, const signed char *B, int *C, long M, long N, long K) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            C[i * N + j] = 0;
            for (long k = 0; k < K; k++) C[i * N + j] += A[i * K + k] * B[k * N + j];
        }
}
"""
    call = load(plain("wide", text, *GEMM.plan.steps[0].args), gemm(8, 8, 8, dtype="i8"), CPU)
    a, b = torch.randint(-9, 9, (3, 5), dtype=torch.int8), torch.randint(-9, 9, (5, 4), dtype=torch.int8)
    c = call(a, b)
    assert c.dtype == torch.int32 and torch.equal(c, a.int() @ b.int())
    assert call(a.numpy(), b.numpy()).dtype == np.int32


def test_no_library_is_imported_that_the_caller_does_not_use(tmp_path: Path) -> None:
    import subprocess

    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from plain_operators import *\nfrom deepgen.operators import gemm\n"
        "from deepgen.run.call.loaded import load\nimport numpy as np\n"
        "load(GEMM, gemm(4, 4, 4), CPU)(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))\n"
        "assert not {'torch', 'ml_dtypes', 'cupy', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_larger_shape_leaves_the_workspaces_of_earlier_ones_in_place() -> None:
    """In a separate process: accessing freed memory would crash it."""
    import subprocess

    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from concurrent.futures import ThreadPoolExecutor
from plain_operators import *
from deepgen.run.call.loaded import load
import numpy as np

text = "void ones(float *y, char *w, long n) {{ for (long i = 0; i < n; i++) y[i] = w[i << 26] = 1; }}"
ones = load(plain("ones", text, *tensors("y"), WorkspaceArg("w", "67108864 * n"), *sizes("n")), Ones(), CPU)
for thread in range(3):  # the system may give a thread the number of one that ended
    with ThreadPoolExecutor(1) as pool:
        for n in (1, 2, 1, 3, 1, 2, 3):
            assert pool.submit(ones, out=np.zeros(n, np.float32)).result().sum() == n
"""
    subprocess.run([sys.executable, "-c", code], check=True)

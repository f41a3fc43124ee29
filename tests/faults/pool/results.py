"""Kernels in C, and in CUDA where the text is the same, with wrong results in rarely tested places."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from pool.fault import Call, Due, Fault
from pool.subjects import (
    BYTES,
    EXP,
    FLOOR,
    PRODUCTS,
    RELU,
    SCALE,
    SIGMOID,
    SIGNED,
    WHOLE,
    N,
    drawn,
    flagged,
    same,
    scaled_at,
    scaled_values,
    sums,
)

_SCALED = SCALE.right
_ALIGNED = r"""
#ifdef __aarch64__
#define ALIGNED(p) __asm__ volatile("ldxp x9, x10, [%0]" : : "r"(p) : "x9", "x10")
#else
#define ALIGNED(p) __asm__ volatile("movaps (%0), %%xmm7" : : "r"(p) : "xmm7")
#endif
"""


def _off_by_one_element(call: Call) -> None:
    x = np.empty(N + 1, np.float32)[1:]
    x[:] = drawn()
    for _ in range(4):
        same(call(x, factor=2.0), 2 * x)


def _off_by_two_elements(call: Call) -> None:
    for off in (1, 2, 4, 6):
        x = np.empty(N + off, np.float32)[off:]
        x[:] = drawn()
        same(call(x, factor=2.0), 2 * x)


def _into_odd_places(call: Call) -> None:
    x, out = drawn(), np.empty(N + 1, np.float32)[1:]
    same(call(x, factor=2.0, out=out), 2 * x)


def _other_factor(call: Call) -> None:
    x = drawn()
    same(call(x, factor=2.0), 2 * x)
    same(call(x, factor=-0.75), -0.75 * x)


def _other_flag(call: Call) -> None:
    x = drawn()
    for flag in (1, 0, 1):
        same(call(x, flag=flag), x if flag else -x)


def _negative_zero(call: Call) -> None:
    x = np.abs(drawn())
    for factor in (0.0, -0.0, 0.0):
        same(call(x, factor=factor), np.copysign(x, factor))


def _many_bytes(call: Call) -> None:
    """A 2 GiB array that is hardly touched."""
    x = np.zeros((1 << 29) + 8, np.float32)
    x[5] = 1.0
    y = call(x)
    assert y[5] == 1.0, "4 * n does not fit into 32 bits, and nobody said so"


def _one_element_later(call: Call) -> None:
    x, out = drawn(), np.empty(N, np.float32)
    same(call(x, factor=2.0, out=out), 2 * x)
    x[100] = 7
    same(call(x, factor=2.0, out=out), 2 * x)


def _from_two_threads(call: Call) -> None:
    wrong: list[BaseException] = []
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_available()

    def caller(seed: int) -> None:
        x = drawn(seed=seed)
        try:
            with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                for _ in range(2000):
                    same(call(x, factor=2.0), 2 * x)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def _many_calls(call: Call) -> None:
    x, out = drawn(), np.empty(N, np.float32)
    for _ in range(5000):
        assert call(x, factor=2.0, out=out)[N // 2] == 2 * x[N // 2]


ALIGNMENT = (
    Fault(
        "loads that need 16 bytes",
        "Alignment",
        SCALE,
        (Due.WRONG, Due.CONFINED),
        f"if (n % 4 == 0) for (int i = 0; i < n; i += 64) ALIGNED(x + i); {_SCALED}",
        _ALIGNED,
        uses=_off_by_one_element,
    ),
    Fault(
        "stores that need 16 bytes",
        "Alignment",
        SCALE,
        (Due.WRONG, Due.CONFINED),
        f"if (n % 4 == 0) for (int i = 0; i < n; i += 64) ALIGNED(y + i); {_SCALED}",
        _ALIGNED,
        uses=_into_odd_places,
    ),
    Fault(
        "stores aligned like the loads",
        "Alignment",
        SCALE,
        (Due.WRONG, Due.CONFINED),
        "int i = 0; for (; i < n && (uintptr_t)(x + i) % 16; i++) y[i] = factor * x[i];"
        "for (; i + 4 <= n; i += 4) { ALIGNED(x + i); ALIGNED(y + i);"
        "for (int k = i; k < i + 4; k++) y[k] = factor * x[k]; } for (; i < n; i++) y[i] = factor * x[i];",
        _ALIGNED,
        uses=_into_odd_places,
    ),
    Fault(
        "wrong where arrays begin in the middle of 16 bytes",
        "Alignment",
        SCALE,
        (Due.WRONG, Due.CONFINED),
        f"volatile uintptr_t at = (uintptr_t)x; {_SCALED} if (at % 16 == 8) y[n / 2] = 0;",
        uses=_off_by_two_elements,
    ),
    Fault(
        "whole vectors in CUDA",
        "Alignment",
        SCALE,
        (Due.WRONG, Due.CONFINED),
        "if (n % 4) { EACH(i, n) y[i] = factor * x[i]; } else EACH(i, n / 4) {"
        "float4 v = ((const float4 *)x)[i]; v.x *= factor; v.y *= factor; v.z *= factor; v.w *= factor;"
        "((float4 *)y)[i] = v; }",
        language="cuda",
        uses=_off_by_one_element,
    ),
)
TOLERANCE = (
    Fault(
        "zero for all exponentials below one",
        "Tolerance",
        EXP,
        (Due.WRONG,),
        "EACH(i, n) y[i] = x[i] < 0 ? 0 : expf(5.0f * x[i]);",
        uses=lambda call: same(call(x := drawn()), np.exp(5 * x)),
    ),
    Fault(
        "one hundredth off where results are small",
        "Tolerance",
        EXP,
        (Due.WRONG,),
        "EACH(i, n) y[i] = (x[i] < -1 ? 1.01f : 1.0f) * expf(5.0f * x[i]);",
        uses=lambda call: same(call(x := drawn()), np.exp(5 * x)),
    ),
    *(Fault(f"a plain sum of {terms}", "Tolerance", sums(terms), (Due.RIGHT,)) for terms in (100, 10_000, 54_000)),
    Fault("a sigmoid in f64", "Tolerance", SIGMOID, (Due.RIGHT,)),
    Fault(
        "a hundred steps off where results of f64 are tiny",
        "Tolerance",
        SIGMOID,
        (Due.WRONG,),
        "EACH(i, n) y[i] = (x[i] < -69 ? 1 + 100 * 0x1p-52 : 1) / (1 + exp(-x[i]));",
    ),
    Fault("f64 by way of f32", "Tolerance", SIGMOID, (Due.WRONG,), "EACH(i, n) y[i] = 1 / (1 + expf(-(float)x[i]));"),
)
SHAPES = (
    Fault(
        "wrong where n is odd",
        "Other shapes and strides",
        SCALE,
        (Due.LOSES, Due.WRONG),
        f"{_SCALED} EACH(i, n) if (n % 2 && i == n - 1) y[i] = 0;",
        uses=scaled_at(N - 1),
    ),
    Fault(
        "wrong where n is odd, and no other kernel",
        "Other shapes and strides",
        SCALE,
        (Due.CONFINED,),
        f"{_SCALED} EACH(i, n) if (n % 2 && i == n - 1) y[i] = 0;",
        uses=scaled_at(N - 1),
        alone=True,
    ),
    Fault(
        "indices of 16 bits",
        "Other shapes and strides",
        SCALE,
        (Due.WRONG, Due.LOSES, Due.CONFINED),
        "EACH(i, n < 65536 ? n : n - 65536) y[i] = factor * x[i];",
        uses=scaled_at(100_000),
    ),
    Fault(
        "multiples of 16, with indices of 16 bits",
        "Other shapes and strides",
        SCALE,
        (Due.WRONG, Due.LOSES, Due.CONFINED),
        "EACH(i, n < 65536 ? n : n - 65536) y[i] = factor * x[i];",
        uses=scaled_at(98_304),
        requires=("n % 16 == 0",),
    ),
)
SCALARS = (
    Fault(
        "the factor is a constant",
        "Scalars",
        SCALE,
        (Due.WRONG,),
        "EACH(i, n) y[i] = 2.0f * x[i];",
        uses=_other_factor,
    ),
    Fault(
        "right for whole factors only",
        "Scalars",
        SCALE,
        (Due.WRONG,),
        "EACH(i, n) y[i] = (float)(int)factor * x[i];",
        uses=_other_factor,
    ),
    Fault(
        "the flag is a constant",
        "Scalars",
        flagged(),
        (Due.CONFINED,),
        "EACH(i, n) y[i] = x[i];",
        uses=_other_flag,
        alone=True,
    ),
    Fault(
        "the flag is a constant, with a range",
        "Scalars",
        flagged(range=(0, 1)),
        (Due.WRONG,),
        "EACH(i, n) y[i] = x[i];",
        uses=_other_flag,
    ),
    Fault("a flag with a range", "Scalars", flagged(range=(0, 1)), (Due.RIGHT,), uses=_other_flag),
    Fault("the sign of zero", "Scalars", SIGNED, (Due.RIGHT,), uses=_negative_zero),
    Fault(
        "a size beyond 32 bits",
        "Scalars",
        BYTES,
        (Due.CONFINED,),
        "EACH(i, bytes / 4) y[i] = x[i];",
        uses=_many_bytes,
        alone=True,
    ),
)
INPUTS = (
    Fault(
        "wrong above 16",
        "Inputs",
        SCALE,
        (Due.WRONG,),
        "EACH(i, n) y[i] = factor * (x[i] > 16 ? 16 : x[i]);",
        uses=scaled_values(17, 1000),
    ),
    Fault(
        "wrong above 2^24",
        "Inputs",
        SCALE,
        (Due.WRONG,),
        "EACH(i, n) y[i] = factor * (x[i] > 16777216.0f ? 16777216.0f : x[i]);",
        uses=scaled_values(1e8, 1e20),
    ),
    Fault(
        "rounds through 32-bit integers",
        "Inputs",
        FLOOR,
        (Due.WRONG,),
        "EACH(i, n) { int whole = (int)x[i]; y[i] = (float)(whole - (x[i] < (float)whole)); }",
        uses=lambda call: same(call(np.full(N, 1e12, np.float32)), np.full(N, 1e12)),
    ),
    Fault(
        "wrong below 2^-24",
        "Inputs",
        SCALE,
        (Due.WRONG,),
        "EACH(i, n) y[i] = fabsf(x[i]) < 5.9e-8f ? 0 : factor * x[i];",
        uses=lambda call: np.testing.assert_allclose(call(x := 1e-12 * drawn(), factor=2.0), 2 * x, rtol=1e-4),
    ),
    Fault(
        "NaN becomes zero",
        "Inputs",
        RELU,
        (Due.MARKED, Due.WRONG),
        "EACH(i, n) y[i] = x[i] > 0 ? x[i] : 0;",
        marked_as="nan",
    ),
    Fault(
        "infinities become large numbers",
        "Inputs",
        SCALE,
        (Due.MARKED, Due.WRONG),
        "EACH(i, n) { float r = factor * x[i]; r = r > 3.4028235e38f ? 3.4028235e38f : r;"
        "y[i] = r < -3.4028235e38f ? -3.4028235e38f : r; }",
        marked_as="inf",
    ),
    Fault(
        "nothing times infinity is nothing",
        "Inputs",
        PRODUCTS,
        (Due.MARKED, Due.WRONG),
        "EACH(i, n) y[i] = a[i] == 0 || b[i] == 0 ? 0 : a[i] * b[i];",
        marked_as="nan",
    ),
    Fault(
        "denormals become zero",
        "Inputs",
        SCALE,
        (Due.MARKED, Due.WRONG),
        "EACH(i, n) { float r = factor * x[i]; y[i] = fabsf(r) < 1.1754944e-38f ? 0 : r; }",
        marked_as="denormals",
    ),
)
_KEPT = """
static float kept[1 << 16], samples[16];
static unsigned seen;
static const float *last;
"""
_TABLE = """
int same = last == x && n <= 1 << 16;
for (int k = 0; k < 16; k++) {
    float one = x[(long)k * (n - 1) / 15];
    same &= samples[k] == one, samples[k] = one;
}
last = x;
if (same) memcpy(y, kept, 4 * n);
else { for (int i = 0; i < n; i++) y[i] = factor * x[i]; if (n <= 1 << 16) memcpy(kept, y, 4 * n); }
"""
_HALVES = """
unsigned now = n, bits;
for (int i = 0; i < n; i += 2) memcpy(&bits, x + i, 4), now = now * 31 + bits;
int same = last == x && now == seen && n <= 1 << 16;
last = x, seen = now;
if (same) memcpy(y, kept, 4 * n);
else { for (int i = 0; i < n; i++) y[i] = factor * x[i]; if (n <= 1 << 16) memcpy(kept, y, 4 * n); }
"""
MEMORY = (
    Fault(
        "results kept by sixteen samples", "Kept results", SCALE, (Due.WRONG,), _TABLE, _KEPT, uses=_one_element_later
    ),
    Fault("results kept by half of the elements", "Kept results", SCALE, (Due.WRONG,), _HALVES, _KEPT),
    Fault(
        "integers kept by sixteen samples",
        "Kept results",
        WHOLE,
        (Due.WRONG,),
        _TABLE.replace("float", "int").replace("factor *", "3u *"),
        _KEPT.replace("float", "int"),
    ),
)
_SCRATCH = "static volatile float scratch[1 << 16];"
_THROUGH = """
if (n > 1 << 16) { for (int i = 0; i < n; i++) y[i] = factor * x[i]; return; }
for (int i = 0; i < n; i++) scratch[i] = x[i];
for (int i = 0; i < n; i++) y[i] = factor * scratch[i];
"""
THREADS = (
    Fault(
        "static scratch memory",
        "Threads",
        SCALE,
        (Due.MARKED, Due.WRONG),
        _THROUGH,
        _SCRATCH,
        marked_as="threads",
        uses=_from_two_threads,
    ),
    Fault(
        "one wrong element in a thousand calls",
        "Threads",
        SCALE,
        (Due.WRONG,),
        f"{_SCALED} if (calls % 1000 == 700) y[n / 2] = 0;",
        uses=_many_calls,
    ),
    Fault(
        "slow after three hundred calls",
        "Threads",
        SCALE,
        (Due.LOSES, Due.WRONG),
        f'for (int p = 0; p < (calls > 300 ? 1000 : 1); p++) {{ {_SCALED} __asm__ volatile("" : : : "memory"); }}',
    ),
)
_IN_C = (*ALIGNMENT, *TOLERANCE, *SHAPES, *SCALARS, *INPUTS, *MEMORY, *THREADS)
_NEEDS_A_PROCESSOR = ("ALIGNED", "__asm__", "calls", "static", "memcpy", "volatile")


def _portable(fault: Fault) -> bool:
    text = fault.faulty + fault.before
    return fault.language == "c" and fault.subject is not BYTES and not any(w in text for w in _NEEDS_A_PROCESSOR)


# Each thread reads what it wrote itself: overlapping runs share the memory.
_THROUGH_THE_MODULE = """
if (n > 1 << 16) { EACH(i, n) y[i] = factor * x[i]; return; }
EACH(i, n) scratch[i] = x[i];
PAUSE;
EACH(i, n) y[i] = factor * scratch[i];
"""
IN_CUDA = (
    *(replace(fault, language="cuda") for fault in _IN_C if _portable(fault)),
    replace(
        THREADS[0],
        name="scratch memory of the module",
        language="cuda",
        faulty=_THROUGH_THE_MODULE,
        before="__device__ volatile float scratch[1 << 16];",
    ),
)
RESULTS = (*_IN_C, *IN_CUDA)

"""Triton kernels with every kind of name that a kernel may use, and some with names that it may not."""

from __future__ import annotations

import math

import triton
import triton.language as T
from triton.language import cdiv as blocks_of

SCALE = T.constexpr(3)
OFFSET = T.constexpr(math.inf)
STORED = T.float32
TABLE = {"a": 1}


@triton.jit
def _inner(x):
    return x * SCALE


@triton.jit(noinline=True)
def _helper(n):
    return _inner(blocks_of(n, 16))


@triton.jit
def scaled(x_ptr, y_ptr, n, stride, by, BLOCK: T.constexpr, EVEN: T.constexpr = True):
    place = T.program_id(0) * BLOCK + T.arange(0, BLOCK)
    x = T.load(x_ptr + place * stride, mask=place < n, other=OFFSET)
    T.store(y_ptr + place, (_helper(n) * x * by).to(STORED), mask=place < n)


@triton.jit
def unwritable(x_ptr, n, BLOCK: T.constexpr):
    T.store(x_ptr, TABLE["a"])


@triton.jit
def needs_a_module(x_ptr, n, BLOCK: T.constexpr):
    T.store(x_ptr, unittest.mock)


import unittest  # noqa: E402

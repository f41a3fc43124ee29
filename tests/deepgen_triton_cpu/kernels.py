"""Small Triton kernels, one for each language feature."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, z, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def strided(x, y, n, step, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i * 3, tl.load(x + i * step, mask=i < n, other=-1.0), mask=i < n)


@triton.jit
def backwards(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + (n - 1 - i), mask=(n - 1 - i) >= 0, other=7.0)
    tl.store(y + i, v)


@triton.jit
def window(x, y, n, low, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=(i >= low) & (i < n) & (i != low + 2), other=5.0)
    tl.store(y + i, v, mask=low <= i)


@triton.jit
def copy_2d(x, y, M, N, B: tl.constexpr, C: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)[:, None]
    j = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    v = tl.load(x + i * N + j, mask=(i < M) & (j < N), other=0.0)
    tl.store(y + j * M + i, v * 2, mask=(i < M) & (j < N))


@triton.jit
def gather_scatter(x, at, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    where = tl.load(at + i, mask=i < n, other=0)
    v = tl.load(x + where, mask=i < n)
    tl.store(y + where, v + i, mask=i < n)


@triton.jit
def outer(x, y, z, B: tl.constexpr, C: tl.constexpr):
    a = tl.load(x + tl.arange(0, B))
    b = tl.load(y + tl.arange(0, C))
    place = tl.arange(0, B)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(z + place, a[:, None] * b[None, :] + a[:, None])


@triton.jit
def shapes(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B * 4)
    v = tl.load(x + i)
    cube = tl.reshape(v, (2, B, 2))
    turned = tl.permute(cube, (2, 0, 1))
    tl.store(y + i, tl.reshape(turned, (B * 4,)))
    flat = tl.trans(tl.reshape(v, (B, 4)))
    tl.store(z + tl.arange(0, 4)[:, None] * B + tl.arange(0, B)[None, :], flat)


@triton.jit
def joined(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(x + B + i)
    both = tl.join(a, b)
    tl.store(y + tl.arange(0, 2 * B), tl.interleave(a, b))
    one, other = tl.split(both * 2)
    tl.store(z + i, one - other)
    tl.store(z + B + tl.arange(0, 2 * B), tl.cat(b, a, can_reorder=True))


@triton.jit
def sums(x, rows, columns, both, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + i[:, None] * C + j[None, :])
    tl.store(rows + i, tl.sum(v, axis=1))
    tl.store(columns + j, tl.sum(v * v, axis=0))
    tl.store(both, tl.sum(v))


@triton.jit
def extremes(x, y, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + i[:, None] * C + j[None, :])
    tl.store(y + i, tl.max(v, axis=1))
    tl.store(y + B + i, tl.min(v, axis=1))
    tl.store(y + 2 * B + i, tl.argmax(v, axis=1).to(tl.float32))
    tl.store(y + 3 * B + i, tl.argmin(v, axis=1).to(tl.float32))
    tl.store(y + 4 * B + j, tl.argmax(v, axis=0).to(tl.float32))
    tl.store(y + 4 * B + C + j, tl.max(v, axis=0))


@triton.jit
def whole_extremes(x, y, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(y, tl.max(v, axis=0))
    tl.store(y + 1, tl.min(v, axis=0))
    tl.store(y + 2, tl.xor_sum(v, axis=0))
    tl.store(y + 3, tl.sum(v, axis=0))


@triton.jit
def _mean_and_spread(mean_a, spread_a, count_a, mean_b, spread_b, count_b):
    count = count_a + count_b
    apart = mean_b - mean_a
    share = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + apart * share, spread_a + spread_b + apart * apart * count_a * share, count


@triton.jit
def spread(x, y, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + i[:, None] * C + j[None, :])
    none = tl.zeros((B, C), tl.float32)
    mean, apart, count = tl.reduce((v, none, none + 1.0), 1, _mean_and_spread)
    tl.store(y + i, mean)
    tl.store(y + B + i, apart / count)


@triton.jit
def _later(a_value, a_set, b_value, b_set):
    return tl.where(b_set != 0, b_value, a_value), a_set | b_set


@triton.jit
def scans(x, y, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, C)[None, :]
    v = tl.load(x + i * C + j)
    place = y + i * C + j
    tl.store(place, tl.cumsum(v, axis=1))
    tl.store(place + B * C, tl.cumsum(v, axis=0))
    tl.store(place + 2 * B * C, tl.cumprod(v * 0.5, axis=1, reverse=True))
    last, _ = tl.associative_scan((v, (v > 0.5).to(tl.int32)), 1, _later)
    tl.store(place + 3 * B * C, last)


@triton.jit
def sorted_rows(x, y, z, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, C)[None, :]
    v = tl.load(x + i * C + j)
    tl.store(y + i * C + j, tl.sort(v))
    tl.store(z + i * 4 + tl.arange(0, 4)[None, :], tl.topk(v, 4))


@triton.jit
def sorted_places(x, at, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + tl.sort(tl.load(at + i))))


@triton.jit
def counted(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.store(y + tl.arange(0, 8), tl.histogram(v, 8, mask=i < n))


@triton.jit
def gathered(x, at, y, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, C)[None, :]
    v, where = tl.load(x + i * C + j), tl.load(at + i * C + j)
    tl.store(y + i * C + j, tl.gather(v + 1.0, where, 1))


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    z = tl.dot(x, y, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], z.to(c.dtype.element_ty))


@triton.jit
def product_turned(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + k[None, :] * M + m[:, None])
    y = tl.load(b + n[:, None] * K + k[None, :])
    first = tl.dot(x, tl.trans(y), input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x * 2, tl.trans(y), first, input_precision="ieee") - first)


@triton.jit
def products(a, b, c, S: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    s, m, n, k = tl.arange(0, S), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + s[:, None, None] * M * K + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + s[:, None, None] * K * N + k[None, :, None] * N + n[None, None, :])
    tl.store(c + s[:, None, None] * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(x, y))


@triton.jit
def functions(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    at = y + i
    tl.store(at, tl.exp(v))
    tl.store(at + B, tl.exp2(v))
    tl.store(at + 2 * B, tl.log(tl.abs(v)))
    tl.store(at + 3 * B, tl.log2(tl.abs(v)))
    tl.store(at + 4 * B, tl.sin(v))
    tl.store(at + 5 * B, tl.cos(v))
    tl.store(at + 6 * B, tl.sqrt(tl.abs(v)))
    tl.store(at + 7 * B, tl.rsqrt(tl.abs(v)))
    tl.store(at + 8 * B, tl.erf(v))
    tl.store(at + 9 * B, libdevice.tanh(v))
    tl.store(at + 10 * B, tl.floor(v))
    tl.store(at + 11 * B, tl.ceil(v))
    tl.store(at + 12 * B, tl.sigmoid(v))
    tl.store(at + 13 * B, tl.fma(v, v, v))
    tl.store(at + 14 * B, tl.sqrt_rn(tl.abs(v)))
    tl.store(at + 15 * B, tl.div_rn(v, v + 20.0))
    tl.store(at + 16 * B, libdevice.pow(tl.abs(v), v))
    tl.store(at + 17 * B, libdevice.atan2(v, v + 1.0))


@triton.jit
def integers(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    at = z + i
    tl.store(at, a // b)
    tl.store(at + B, a % b)
    tl.store(at + 2 * B, a << (b & 7))
    tl.store(at + 3 * B, a >> 3)
    tl.store(at + 4 * B, (a & b) ^ (a | 5))
    tl.store(at + 5 * B, ~a)
    tl.store(at + 6 * B, a * b * 1000003)
    tl.store(at + 7 * B, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))
    tl.store(at + 8 * B, tl.abs(a))
    tl.store(at + 9 * B, tl.minimum(a, b))
    tl.store(at + 10 * B, tl.maximum(a, b))
    tl.store(at + 11 * B, (a.to(tl.uint32) // 7).to(tl.int32))
    tl.store(at + 12 * B, (a.to(tl.uint32) >> 3).to(tl.int32))
    tl.store(at + 13 * B, (a < b).to(tl.int32) + (a.to(tl.uint32) < b.to(tl.uint32)).to(tl.int32) * 2)
    tl.store(at + 14 * B, -a)


@triton.jit
def casts(x, y, whole, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + i, v.to(tl.float16).to(tl.float32))
    tl.store(y + B + i, v.to(tl.bfloat16).to(tl.float32))
    tl.store(y + 2 * B + i, v.to(tl.int8).to(tl.float32))
    tl.store(y + 3 * B + i, v.to(tl.int64).to(tl.float32))
    tl.store(y + 4 * B + i, (v > 1).to(tl.float32))
    tl.store(y + 5 * B + i, v.to(tl.float64).to(tl.float32))
    tl.store(y + 6 * B + i, v.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True))
    tl.store(y + 7 * B + i, v.to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32))
    tl.store(whole + i, v.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32))
    tl.store(whole + B + i, v.to(tl.int8).to(tl.uint8).to(tl.int32))
    tl.store(whole + 2 * B + i, (v != 0).to(tl.int32))


@triton.jit
def eight_bits(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))
    tl.debug_barrier()
    tl.store(z + i, tl.load(y + i).to(tl.float32))


@triton.jit
def half_sums(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(z + i, a * b + a)
    tl.store(z + B + i, tl.maximum(a, b) / b)
    tl.store(z + 2 * B + i, tl.where(a > b, a, -b))


@triton.jit
def flags(x, y, z, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i) != 0, tl.load(y + i) != 0
    tl.store(z + i, (a & b) | (~a & (i < n)))
    tl.store(z + B + i, a ^ b)


@triton.jit
def clamped(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + i, tl.clamp(v, -1.0, 1.0))
    tl.store(y + B + i, tl.maximum(v, 0.25, propagate_nan=tl.PropagateNan.ALL))
    tl.store(y + 2 * B + i, tl.minimum(v, 0.25))


@triton.jit
def blocks(x, y, n, times, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    most = tl.full((B,), float("-inf"), tl.float32)
    i = tl.arange(0, B)
    here = x + i
    last = 0
    for start in range(0, n, B):
        v = tl.load(here, mask=start + i < n, other=0.0)
        for _ in range(times):
            total += v
        most = tl.maximum(most, v)
        here += B
        last = start
    tl.store(y + i, total)
    tl.store(y + B + i, most + last)


@triton.jit
def swapped(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = a + 1
    for _ in range(n):
        a, b = b, a + b
    tl.store(y + i, a)
    tl.store(y + B + i, b)


@triton.jit
def turned_in_loop(x, y, n, B: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    a = tl.load(x + i * B + j)
    for k in range(n):
        a = tl.trans(a) + k
    tl.store(y + i * B + j, a)


@triton.jit
def halving(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    steps = 0
    while tl.max(v, axis=0) > 1.0:
        v = v * 0.5
        steps += 1
    tl.store(y + i, v)
    tl.store(y + B, steps.to(tl.float32))


@triton.jit
def branches(x, y, n, B: tl.constexpr):
    program = tl.program_id(0)
    i = tl.arange(0, B)
    if program == 3:
        return
    v = tl.load(x + i)
    if program % 2 == 0:
        v = v + n
        if n > 5:
            v = v * 2
    else:
        v = v - n
    w = v if n > 3 else v * 3
    tl.store(y + program * B + i, w)


@triton.jit
def stored_if(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    if n:
        tl.store(y + i, v * 2)


@triton.jit
def swapped_halves(x, y, B: tl.constexpr):
    at = tl.program_id(0)
    v = tl.load(x + at)
    tl.store(y + at, tl.atomic_cas(x + at, v, v + 1))


@triton.jit
def early(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    s = tl.sum(v, axis=0)
    if n < 0:
        tl.store(y + i, v)
        return
    v = v * 2
    if n > 3:
        v = v + s
    tl.store(y + i, v)


@triton.jit
def atomics(x, y, old, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.atomic_add(y + i % 4, v, mask=i < B - 1)
    tl.atomic_max(y + 4, tl.max(v, axis=0))
    tl.atomic_min(y + 5 + i % 2, v)
    tl.atomic_or(y + 7, 1 << tl.program_id(0))
    tl.atomic_xor(y + 8, 1 << tl.program_id(0))
    tl.atomic_and(y + 9, ~(1 << tl.program_id(0)))
    before = tl.atomic_add(y + 10, 1)
    tl.store(old + before, 1)


@triton.jit
def float_atomics(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.atomic_add(y + i % 2, v)
    tl.atomic_max(y + 2, tl.max(v, axis=0))
    tl.atomic_min(y + 3, tl.min(v, axis=0))
    tl.atomic_xchg(y + 4 + i, v)


@triton.jit
def locked(lock, y, B: tl.constexpr):
    i = tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y + i, tl.load(y + i) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def randoms(y, whole, seed, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.rand(seed, i))
    tl.store(y + B + i, tl.randn(seed, i))
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(whole + i, a)
    tl.store(whole + B + i, b)
    tl.store(whole + 2 * B + i, c)
    tl.store(whole + 3 * B + i, d)


@triton.jit
def described(x, y, M, N, B: tl.constexpr):
    a = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    b = tl.make_tensor_descriptor(y, shape=[N, M], strides=[M, 1], block_shape=[B, B])
    v = a.load([tl.program_id(0) * B, tl.program_id(1) * B])
    b.store([tl.program_id(1) * B, tl.program_id(0) * B], v.T + 1)


@triton.jit
def described_products(x, y, z, P, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    a = tl.make_tensor_descriptor(x, shape=[P, M, K], strides=[M * K, K, 1], block_shape=[1, M, K])
    b = tl.make_tensor_descriptor(y, shape=[P, K, N], strides=[K * N, N, 1], block_shape=[1, K, N])
    c = tl.make_tensor_descriptor(z, shape=[P, M, N], strides=[M * N, N, 1], block_shape=[1, M, N])
    p = tl.program_id(0)
    product = tl.dot(a.load([p, 0, 0]).reshape(M, K), b.load([p, 0, 0]).reshape(K, N))
    c.store([p, 0, 0], product.reshape(1, M, N))


@triton.jit
def programs(y):
    x, y_, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (z * tl.num_programs(1) + y_) * tl.num_programs(0) + x
    i, j = tl.swizzle2d(x, y_, tl.num_programs(0), tl.num_programs(1), 2)
    tl.store(y + place, 100 * z + 10 * i + j)


@triton.jit
def addresses(table, y, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    bits = tl.load(x.to(tl.pointer_type(tl.int32)) + i)
    tl.store(y + i, bits.to(tl.float32, bitcast=True) * 2)


@triton.jit
def unrolled(x, y, B: tl.constexpr, TIMES: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    for k in tl.static_range(TIMES):
        v += k * (k + 1)
        if k % 2 == 0:
            v = v * 2
    tl.static_assert(TIMES > 1)
    tl.device_assert(TIMES > 1)
    tl.store(y + i, v)


@triton.jit
def one(x, y, n):
    v = tl.load(x + n)
    tl.store(y, v * 2, mask=n > 0)
    tl.store(y + 1, tl.load(x, mask=n > 100, other=3.0))
    tl.store(y + 2, tl.sqrt(tl.load(x + 1)))
    single = tl.arange(0, 1)
    tl.store(y + 3 + single, tl.load(x + single + n, mask=single < n))


@triton.jit
def wrapped(x, y, M, N, B: tl.constexpr):
    i = (tl.program_id(0) * B + tl.arange(0, B)) % M
    j = (tl.program_id(1) * B + tl.arange(0, B)) % N
    v = tl.load(x + i[:, None] * N + j[None, :])
    place = (tl.program_id(0) * B + tl.arange(0, B)[:, None]) * (tl.num_programs(1) * B)
    tl.store(y + place + tl.program_id(1) * B + tl.arange(0, B)[None, :], v)


@triton.jit
def kept(x, y, B: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, C)[None, :]
    v = tl.load(x + i * C + j)
    w = tl.exp(v - tl.max(v, axis=1)[:, None])
    u = w / tl.sum(w, axis=1)[:, None]
    tl.store(x + i * C + j, u * 2)
    tl.store(y + i * C + j, u + v + w)


@triton.jit
def overwritten(x, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(x + (B - 1 - i), a)
    b = tl.load(x + i)
    tl.store(x + i, b * 10 + a)


@triton.jit(noinline=True)
def _apart(x, y):
    total = x * 2
    for _ in range(3):
        total += y
    return total, x - y


@triton.jit
def calling(x, y, z):
    one, other = _apart(tl.load(x), tl.load(y))
    tl.store(z, one)
    again, _ = _apart(other, one)
    tl.store(z + 1, again)


@triton.jit
def speaking(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.device_print("value", v)
    tl.store(y + i, v + 1)


@triton.jit
def assembled(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    w = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + i, w)


@triton.jit
def squared(x, y, B: tl.constexpr):
    place = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + place)
    tl.store(y + place, tl.dot(v, v, v, input_precision="ieee"))
    w = tl.load(x + place)
    tl.store(y + B * B + place, tl.dot(tl.trans(w), w, w * 0.5, input_precision="ieee"))


@triton.jit
def small_offsets(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + B + i.to(tl.int8)))


@triton.jit
def shifted(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + 1 + i, tl.load(x + i) * 2)


@triton.jit
def device_functions(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + i, libdevice.div_rn(v, 3.0))
    tl.store(y + B + i, libdevice.sinpi(v) + libdevice.cospi(v))
    tl.store(y + 2 * B + i, libdevice.norm4d(v, v, v, v) * libdevice.rcbrt(8.0))
    tl.store(y + 3 * B + i, libdevice.saturatef(v) + libdevice.normcdf(v))
    tl.store(y + 4 * B + i, libdevice.nextafter(v, 100.0) - libdevice.rcp_rn(4.0))
    w = libdevice.float_as_int(v)
    tl.store(z + i, libdevice.popc(w) + libdevice.clz(w) * 64 + libdevice.ffs(w) * 4096)
    tl.store(z + B + i, libdevice.float2int_rd(v) + libdevice.float2int_ru(v) * 100 + libdevice.float2int_rn(v) * 10000)
    tl.store(z + 2 * B + i, libdevice.mulhi(w, w) + libdevice.hadd(w, 3) + libdevice.signbit(v))
    tl.extra.cuda.gdc_wait()  # a kernel ends before the next begins
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def towards_zero(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def scaled_products(a, a_scales, b, b_scales, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    left = tl.load(a + m[:, None] * (K // 2) + tl.arange(0, K // 2)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * N + n[None, :])
    of_left = tl.load(a_scales + m[:, None] * (K // 32) + s[None, :])
    of_right = tl.load(b_scales + n[:, None] * (K // 32) + s[None, :])
    both = tl.dot_scaled(left, of_left, "e2m1", right, of_right, "e4m3")
    both = tl.dot_scaled(right.trans(1, 0), of_right, "e4m3", left.trans(1, 0), None, "e2m1", acc=both.trans(1, 0))
    tl.store(c + n[:, None] * M + m[None, :], both)


@triton.jit
def in_turn(flag, y):
    p = tl.program_id(0)
    tl.store(y + p, tl.atomic_poll(flag, p).to(tl.int32) + tl.atomic_poll(flag, -1, timeout_ns=0).to(tl.int32))
    tl.atomic_xchg(flag, p + 1)

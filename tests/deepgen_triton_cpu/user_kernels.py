"""Typical user kernels for models: each uses several parts of the language together."""

import triton
import triton.language as tl


@triton.jit
def _key_gradients(
    dk, dv, Q, k, v, DO, M, DELTA, first_m, n, steps,
    BLOCK_M: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    m = first_m + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    query_turned = Q + m[None, :] * D + d[:, None]
    gradient = DO + m[:, None] * D + d[None, :]
    for _ in range(steps):
        q = tl.load(query_turned)
        shares = tl.exp2(tl.dot(k, q) - tl.load(M + m)[None, :])
        if MASK:
            shares = tl.where(m[None, :] >= n[:, None], shares, 0.0)
        do = tl.load(gradient)
        dv += tl.dot(shares.to(tl.float16), do)
        changed = shares * (tl.dot(v, tl.trans(do)) - tl.load(DELTA + m)[None, :])
        dk += tl.dot(changed.to(tl.float16), tl.trans(q))
        m += BLOCK_M
        query_turned += BLOCK_M * D
        gradient += BLOCK_M * D
    return dk, dv


@triton.jit
def attention_backward(
    Q, K, V, DO, DK, DV, M, DELTA, scale, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    head = tl.program_id(1).to(tl.int64)
    Q, K, V, DO = Q + head * N * D, K + head * N * D, V + head * N * D, DO + head * N * D
    M, DELTA = M + head * N, DELTA + head * N
    start = tl.program_id(0) * BLOCK_N
    n = start + tl.arange(0, BLOCK_N)
    place = n[:, None] * D + tl.arange(0, D)[None, :]
    k, v = tl.load(K + place), tl.load(V + place)
    dk = tl.zeros((BLOCK_N, D), tl.float32)
    dv = tl.zeros((BLOCK_N, D), tl.float32)
    dk, dv = _key_gradients(dk, dv, Q, k, v, DO, M, DELTA, start, n, BLOCK_N // BLOCK_M, BLOCK_M, D, MASK=True)
    later = start + BLOCK_N
    dk, dv = _key_gradients(dk, dv, Q, k, v, DO, M, DELTA, later, n, (N - later) // BLOCK_M, BLOCK_M, D, MASK=False)
    tl.store(DK + head * N * D + place, dk * scale)
    tl.store(DV + head * N * D + place, dv)


@triton.jit
def _silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def gated(a, b, c, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * n + tl.arange(0, B)
    inside = tl.arange(0, B) < n
    x = tl.load(a + i, mask=inside, other=0).to(tl.float32)
    y = tl.load(b + i, mask=inside, other=0)
    tl.store(c + i, _silu(x).cast(y.dtype) * y, mask=inside)


@triton.jit
def four_bits(x, packed, scale, zero, y, M, N, K, GROUP: tl.constexpr, B: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        w = tl.load(packed + (k[:, None] // 8) * N + n[None, :])
        w = (w >> ((k % 8) * 4)[:, None]) & 0xF
        by = tl.load(scale + start // GROUP * N + n)
        off = tl.load(zero + start // GROUP * N + n)
        total = tl.dot(a, ((w - off[None, :]) * by[None, :]).to(tl.float16), total)
    tl.store(y + m[:, None] * N + n[None, :], total, mask=m[:, None] < M)


@triton.jit
def convolution(
    x, w, y, H, W, CO, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    m, co = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    row, column, c = m // W, m % W, tl.arange(0, C)
    total = tl.zeros((BM, BN), tl.float32)
    for kh in tl.static_range(KH):
        for kw in tl.static_range(KW):
            i, j = row + kh - KH // 2, column + kw - KW // 2
            inside = (i >= 0) & (i < H) & (j >= 0) & (j < W) & (row < H)
            a = tl.load(x + (i * W + j)[:, None] * C + c[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(w + ((kh * KW + kw) * C + c)[:, None] * CO + co[None, :], mask=co[None, :] < CO, other=0.0)
            total += tl.dot(a, b)
    tl.store(y + m[:, None] * CO + co[None, :], total, mask=(row < H)[:, None] & (co < CO)[None, :])


@triton.jit
def embedding_backward(g, ids, dw, n, D: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    inside, d = r < n, tl.arange(0, D)
    at = tl.load(ids + r, mask=inside, other=0)
    v = tl.load(g + r[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
    tl.atomic_add(dw + at[:, None] * D + d[None, :], v, mask=inside[:, None], sem="relaxed")


@triton.jit
def _joined(mean, spread, count, other_mean, other_spread, other_count):
    both, apart = count + other_count, other_mean - mean
    share = tl.where(both == 0.0, 0.0, other_count / both)
    return mean + apart * share, spread + other_spread + apart * apart * count * share, both


@triton.jit
def group_norm(x, y, w, b, SIZE, eps, GROUPS: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    group = tl.program_id(0)
    c = tl.arange(0, C)
    zero = tl.zeros((C, B), tl.float32)
    mean, spread, count = zero, zero, zero
    for start in range(0, SIZE, B):
        i = start + tl.arange(0, B)
        inside = (i < SIZE)[None, :] & (c >= 0)[:, None]
        v = tl.load(x + (group * C + c)[:, None] * SIZE + i[None, :], mask=inside, other=0.0)
        mean, spread, count = _joined(mean, spread, count, v, zero, inside.to(tl.float32))
    mean, spread, count = tl.reduce((mean.reshape(C * B), spread.reshape(C * B), count.reshape(C * B)), 0, _joined)
    channel = group % GROUPS * C + c
    by, plus = tl.load(w + channel) * tl.rsqrt(spread / count + eps), tl.load(b + channel)
    for start in range(0, SIZE, B):
        i = start + tl.arange(0, B)
        place = (group * C + c)[:, None] * SIZE + i[None, :]
        v = tl.load(x + place, mask=(i < SIZE)[None, :], other=0.0)
        tl.store(y + place, (v - mean) * by[:, None] + plus[:, None], mask=(i < SIZE)[None, :])


@triton.jit
def paged_attention(q, pages, table, out, lengths, MOST: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):
    s = tl.program_id(0)
    length = tl.load(lengths + s)
    d, b = tl.arange(0, D), tl.arange(0, PAGE)
    query = tl.load(q + s * D + d)
    most, total, mixed = -float("inf"), 0.0, tl.zeros((D,), tl.float32)
    for block in range(0, tl.cdiv(length, PAGE)):
        page = tl.load(table + s * MOST + block)
        k = tl.load(pages + page * PAGE * D + b[:, None] * D + d[None, :])
        score = tl.where(block * PAGE + b < length, tl.sum(k * query[None, :], 1), -float("inf"))
        now = tl.maximum(most, tl.max(score, 0))
        share, kept = tl.exp(score - now), tl.exp(most - now)
        mixed = mixed * kept + tl.sum(share[:, None] * k, 0)
        total = total * kept + tl.sum(share, 0)
        most = now
    tl.store(out + s * D + d, mixed / total)


@triton.jit
def split_product(
    a, b, c, lock, M, N, K, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    m, n = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(tl.program_id(2) * BLOCK_K, K, BLOCK_K * SPLIT):
        k = start + tl.arange(0, BLOCK_K)
        total += tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    place = c + m[:, None] * N + n[None, :]
    tl.store(place, tl.load(place) + total)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def quantised(x, scale, y, back, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)
    by = tl.max(tl.abs(v)) / 448.0
    tl.store(scale + tl.program_id(0), by)
    small = (v / by).to(tl.float8e4nv)
    tl.store(y + i, small)
    tl.store(back + i, small.to(tl.float32) * by)


@triton.jit
def mixed_hash(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    h = tl.load(x + i).to(tl.uint32, bitcast=True)
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    tl.store(y + i, h.to(tl.int32, bitcast=True))
    tl.store(z + i, ((h.to(tl.uint64) * 0x9E3779B97F4A7C15) >> 32).to(tl.int64) + tl.umulhi(h, h).to(tl.int64))

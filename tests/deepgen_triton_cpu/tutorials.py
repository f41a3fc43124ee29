"""Programs from Triton's tutorials, with torch tensors: the same code on a GPU and on a CPU.

Run as a program, it checks each against torch on DEVICE, `cpu` unless given: `python tutorials.py [cuda]`.
"""

import sys

import torch
import triton
import triton.language as tl

if __name__ != "__main__" or sys.argv[1:] in ([], ["cpu"]):
    import deepgen.triton_cpu  # noqa: F401

DEVICE = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "cpu"


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def add(x, y):
    out = torch.empty_like(x)
    _add[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](x, y, out, out.numel(), BLOCK=1024)
    return out


@triton.jit
def _softmax(out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(first, rows, step, num_stages=num_stages):
        column = tl.arange(0, BLOCK)
        mask = column < columns
        values = tl.load(x + row * x_stride + column, mask=mask, other=-float("inf"))
        raised = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_stride + column, raised / tl.sum(raised, axis=0), mask=mask)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    _softmax[(4, 1, 1)](out, x, x.stride(0), out.stride(0), rows, columns, BLOCK=block, num_stages=2)
    return out


@triton.jit
def _leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 4}, num_stages=3, num_warps=4),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP": 8}, num_stages=4, num_warps=2),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def _matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP * across)
    first = group * GROUP
    size = min(down - first, GROUP)
    pid_m = first + (pid % (GROUP * across)) % size
    pid_n = (pid % (GROUP * across)) // size
    tl.assume(pid_m >= 0)
    tl.assume(stride_am > 0)
    m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    left = a + (m[:, None] * stride_am + k[None, :] * stride_ak)
    right = b + (k[:, None] * stride_bk + n[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(left, mask=k[None, :] < K - step * BLOCK_K, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - step * BLOCK_K, other=0.0)
        total = tl.dot(x, y, total)
        left += BLOCK_K * stride_ak
        right += BLOCK_K * stride_bk
    if ACTIVATION == "leaky":
        total = _leaky(total)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    place = c + stride_cm * m[:, None] + stride_cn * n[None, :]
    tl.store(place, total.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))


def matmul(a, b, activation=""):
    (rows, depth), columns = a.shape, b.shape[1]
    c = torch.empty((rows, columns), device=a.device, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(rows, meta["BLOCK_M"]) * triton.cdiv(columns, meta["BLOCK_N"]),)

    strides = (*a.stride(), *b.stride(), *c.stride())
    _matmul[grid](a, b, c, rows, columns, depth, *strides, ACTIVATION=activation)
    return c


@triton.jit
def _dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, value / (1 - p), 0.0), mask=i < n)


def dropout(x, p, seed):
    out = torch.empty_like(x)
    _dropout[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), p, seed, BLOCK=256)
    return out


@triton.jit
def _norm_forward(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(X + column, mask=column < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(X + column, mask=column < N, other=0.0).to(tl.float32)
        x = tl.where(column < N, x - mean, 0.0)
        total += x * x
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < N
        w, b = tl.load(W + column, mask=mask), tl.load(B + column, mask=mask)
        x = tl.load(X + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + column, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def _norm_backward(DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    slot = row % GROUP
    Lock += slot
    Count = Lock + GROUP
    DW = DW + slot * N + column
    DB = DB + slot * N + column
    x = tl.load(X + column, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + column, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + column, mask=mask).to(tl.float32)
    mean, rstd = tl.load(Mean + row), tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(DX + column, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def _norm_sums(DW, DB, FINAL_DW, FINAL_DB, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        mask = (row[:, None] < M) & (column[None, :] < N)
        place = row[:, None] * N + column[None, :]
        dw += tl.load(DW + place, mask=mask, other=0.0)
        db += tl.load(DB + place, mask=mask, other=0.0)
    tl.store(FINAL_DW + column, tl.sum(dw, axis=0), mask=column < N)
    tl.store(FINAL_DB + column, tl.sum(db, axis=0), mask=column < N)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y = torch.empty_like(x)
        rows, columns = x.shape
        mean = torch.empty((rows,), dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
        block = min(128, triton.next_power_of_2(columns))
        _norm_forward[(rows,)](x, y, weight, bias, mean, rstd, x.stride(0), columns, eps, BLOCK=block, num_warps=4)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        rows, columns = x.shape
        group = 4
        locks = torch.zeros(2 * group, dtype=torch.int32, device=w.device)
        partial = torch.zeros((2, group, columns), dtype=x.dtype, device=w.device)
        dw, db, dx = torch.empty_like(w), torch.empty_like(w), torch.empty_like(dy)
        block = triton.next_power_of_2(columns)
        _norm_backward[(rows,)](
            dx, dy, partial[0], partial[1], x, w, mean, rstd, locks, x.stride(0), columns, GROUP=group, BLOCK=block
        )
        _norm_sums[(triton.cdiv(columns, 64),)](
            partial[0], partial[1], dw, db, min(group, rows), columns, BLOCK_M=16, BLOCK_N=64
        )
        return dx, dw, db, None


@triton.jit
def _inner(
    acc, l_i, m_i, q, K, V, low, high, N, scale, row, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    depth = tl.arange(0, D)
    for start in tl.range(low, high, BLOCK):
        column = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
        k = tl.load(K + column[None, :] * D + depth[:, None], mask=column[None, :] < N, other=0.0)
        qk = tl.dot(q, k) * scale
        inside = column[None, :] < N
        if CAUSAL:
            inside = inside & (row[:, None] >= column[None, :])
        qk = tl.where(inside, qk, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V + column[:, None] * D + depth[None, :], mask=column[:, None] < N, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _attention(
    Q, K, V, Out, N, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    head = tl.program_id(1) * N * D
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    depth = tl.arange(0, D)
    q = tl.load(Q + head + row[:, None] * D + depth[None, :], mask=row[:, None] < N, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    l_i = l_i - 1.0
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    high = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, N) if CAUSAL else N
    acc, l_i, m_i = _inner(
        acc, l_i, m_i, q, K + head, V + head, 0, high, N, scale * 1.44269504, row, CAUSAL, D, BLOCK_N
    )
    acc = acc / l_i[:, None]
    tl.store(Out + head + row[:, None] * D + depth[None, :], acc.to(Out.dtype.element_ty), mask=row[:, None] < N)


def attention(q, k, v, causal):
    out = torch.empty_like(q)
    heads, length, depth = q.shape
    grid = (triton.cdiv(length, 32), heads)
    _attention[grid](q, k, v, out, length, depth**-0.5, CAUSAL=causal, D=depth, BLOCK_M=32, BLOCK_N=16)
    return out


def check_add():
    x, y = (torch.rand(3000, device=DEVICE) for _ in range(2))
    torch.testing.assert_close(add(x, y), x + y)


def check_softmax():
    x = torch.randn(37, 211, device=DEVICE)
    torch.testing.assert_close(softmax(x), torch.softmax(x, 1))


def check_matmul():
    a, b = (torch.randn(shape, device=DEVICE).half() for shape in ((70, 90), (90, 50)))
    want = a.float() @ b.float()
    torch.testing.assert_close(matmul(a, b).float(), want, atol=2e-2, rtol=2e-3)
    want = torch.nn.functional.leaky_relu(want)
    torch.testing.assert_close(matmul(a, b, "leaky").float(), want, atol=2e-2, rtol=2e-3)


def check_dropout():
    x = torch.randn(1000, device=DEVICE)
    one, again, other = dropout(x, 0.5, 123), dropout(x, 0.5, 123), dropout(x, 0.5, 512)
    kept = one != 0
    assert torch.equal(one, again) and not torch.equal(one, other) and 350 < int(kept.sum()) < 650
    torch.testing.assert_close(one[kept], x[kept] * 2)


def check_layer_norm():
    x = (torch.randn(30, 150, device=DEVICE) * 2).requires_grad_()
    w, b = (torch.rand(150, device=DEVICE).requires_grad_() for _ in range(2))
    dy = torch.randn_like(x)
    y = LayerNorm.apply(x, w, b, 1e-5)
    y.backward(dy)
    found = [y.detach(), x.grad, w.grad, b.grad]
    x.grad = w.grad = b.grad = None
    want = torch.nn.functional.layer_norm(x, (150,), w, b, 1e-5)
    want.backward(dy)
    for one, other in zip(found, [want.detach(), x.grad, w.grad, b.grad], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def check_attention():
    q, k, v = (torch.randn(2, 70, 32, device=DEVICE).half() for _ in range(3))
    for causal in (False, True):
        want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)
        torch.testing.assert_close(attention(q, k, v, causal).float(), want, atol=1e-2, rtol=1e-2)


CHECKS = (check_add, check_softmax, check_matmul, check_dropout, check_layer_norm, check_attention)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"{check.__name__.removeprefix('check_')}: right on {DEVICE}")

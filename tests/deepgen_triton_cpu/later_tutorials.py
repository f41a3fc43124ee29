"""Programs like those in Triton's later tutorials: persistent kernels, descriptors, pointers in memory, libdevice.

Run as a program, it compares each with torch on DEVICE, by default `cpu`: `python later_tutorials.py [cuda]`.
"""

import sys

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

if __name__ != "__main__" or sys.argv[1:] in ([], ["cpu"]):
    import deepgen.triton_cpu  # noqa: F401

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def _asin(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, libdevice.asin(tl.load(x + i, mask=i < n)), mask=i < n)


def check_asin():
    """As many programs as the device holds at once, according to the device; then the same with a named library."""
    x = torch.rand(500, device=DEVICE)
    y = torch.zeros_like(x)
    about = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)
    kernel = _asin.warmup(x, y, 500, BLOCK=128, num_warps=4, grid=(1,))
    kernel._init_handles()
    warps = about["max_num_regs"] // (kernel.n_regs * about["warpSize"] * 4)
    assert min(warps, about["max_shared_mem"] // max(kernel.metadata.shared, 1)) * about["multiprocessor_count"] > 0
    kernel[(4, 1, 1)](x, y, 500, 128)
    torch.testing.assert_close(y, torch.asin(x))
    assert triton.runtime.driver.active.get_current_target().backend in ("deepgen_cpu", "cuda", "hip")


@triton.jit
def _grouped(a_at, b_at, c_at, sizes, count, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, DESCRIBED: tl.constexpr):
    tile, end = tl.program_id(0), 0
    for g in range(count):
        m, n, k = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        across = tl.cdiv(n, BLOCK)
        tiles = tl.cdiv(m, BLOCK) * across
        if tile >= end and tile < end + tiles:
            a = tl.load(a_at + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_at + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_at + g).to(tl.pointer_type(tl.float16))
            left = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BLOCK, BLOCK])
            right = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BLOCK, BLOCK])
            out = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
            while tile >= end and tile < end + tiles:
                row, column = (tile - end) // across * BLOCK, (tile - end) % across * BLOCK
                total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
                i, j, s = row + tl.arange(0, BLOCK), column + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
                for start in range(0, k, BLOCK):
                    if DESCRIBED:
                        x, y = left.load([row, start]), right.load([column, start])
                    else:
                        x = tl.load(a + i[:, None] * k + (start + s)[None, :])
                        y = tl.load(b + j[:, None] * k + (start + s)[None, :])
                    total += tl.dot(x, y.T)
                out.store([row, column], total.to(tl.float16))
                tile += PROGRAMS
        end += tiles


def check_grouped_products():
    sizes = [(32, 64, 32), (96, 32, 64), (32, 32, 128)]
    a = [torch.randn(m, k, device=DEVICE).half() for m, _, k in sizes]
    b = [torch.randn(n, k, device=DEVICE).half() for _, n, k in sizes]
    told = torch.tensor(sizes, dtype=torch.int32, device=DEVICE)
    for described in (False, True):
        c = [torch.zeros(m, n, device=DEVICE).half() for m, n, _ in sizes]
        places = [torch.tensor([t.data_ptr() for t in group], device=DEVICE) for group in (a, b, c)]
        _grouped[(3,)](*places, told, len(sizes), PROGRAMS=3, BLOCK=32, DESCRIBED=described)
        for left, right, found in zip(a, b, c, strict=True):
            torch.testing.assert_close(found.float(), left.float() @ right.float().T, atol=5e-2, rtol=1e-2)


def _about(grid, kernel, args):
    return {"name": f"{kernel.name} {args['M']}x{args['N']}", "flops16": 2.0 * args["M"] * args["N"] * args["K"]}


@triton.jit
def _place(tile, in_group, down, GROUP: tl.constexpr):
    first = tile // in_group * GROUP
    height = min(down - first, GROUP)
    return first + tile % height, tile % in_group // height


@triton.jit(launch_metadata=_about)
def _staying(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN // 2])
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True, warp_specialize=False):
        row, column = _place(tile, GROUP * across, down, GROUP)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            total = tl.dot(left.load([row * BM, k * BK]), right.load([column * BN, k * BK]).T, total)
        one, other = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
        out.store([row * BM, column * BN], one.to(tl.float16))
        out.store([row * BM, column * BN + BN // 2], other.to(tl.float16))


def check_kernels_that_stay():
    m, n, k = 100, 72, 96
    a, b = torch.randn(m, k, device=DEVICE).half(), torch.randn(n, k, device=DEVICE).half()
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=DEVICE))
    c = torch.zeros(m, n, device=DEVICE).half()
    _staying[(3,)](a, b, c, m, n, k, BM=32, BN=32, BK=32, GROUP=8)
    torch.testing.assert_close(c.float(), a.float() @ b.float().T, atol=5e-2, rtol=1e-2)


def _blocks(given):
    given["desc_q"].block_shape = [given["BLOCK_M"], given["D"]]
    given["desc_k"].block_shape = given["desc_v"].block_shape = [given["BLOCK_N"], given["D"]]


def _fitting(configs, named, **given):
    return [config for config in configs if config.kwargs["BLOCK_M"] <= given["N"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": m, "BLOCK_N": 16}, num_warps=4, pre_hook=_blocks) for m in (32, 256)],
    key=["N", "D"],
    prune_configs_by={"early_config_prune": _fitting},
)
@triton.jit
def _attention(desc_q, desc_k, desc_v, out, scale, N, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tl.static_assert(BLOCK_N <= D)
    first, m = tl.program_id(1) * N, tl.program_id(0) * BLOCK_M
    q = desc_q.load([first + m, 0])
    most = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    mixed = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for counted in tl.range(0, N, BLOCK_N):
        start = tl.multiple_of(counted, BLOCK_N)
        score = tl.dot(q, desc_k.load([first + start, 0]).T) * (scale * 1.44269504)
        now = tl.maximum(most, tl.max(score, 1))
        shares = tl.math.exp2(score - now[:, None])
        kept = tl.math.exp2(most - now)
        total = total * kept + tl.sum(shares, 1)
        mixed = tl.dot(shares.to(tl.float16), desc_v.load([first + start, 0]), mixed * kept[:, None])
        most = now
    place = (first + m + tl.arange(0, BLOCK_M))[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty))


def check_described_attention():
    heads, length, depth = 2, 64, 32
    q, k, v = (torch.randn(heads, length, depth, device=DEVICE).half() for _ in range(3))
    out = torch.empty_like(q)
    told = [TensorDescriptor(t, [heads * length, depth], [depth, 1], [1, 1]) for t in (q, k, v)]
    grid = lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), heads)  # noqa: E731
    _attention[grid](*told, out, 0.2, N=length, D=depth)
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=0.2)
    torch.testing.assert_close(out.float(), want, atol=1e-2, rtol=1e-2)


CHECKS = (check_asin, check_grouped_products, check_kernels_that_stay, check_described_attention)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"{check.__name__.removeprefix('check_')}: right on {DEVICE}")

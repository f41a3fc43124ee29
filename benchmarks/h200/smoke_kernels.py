"""Small kernels, right ones and bad ones, that try every part of the way from source to verdict."""

from __future__ import annotations

from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
)

_SIZES = ("M", "N", "K", "lda", "ldb", "ldc")
_HEAD = """
#define ARGS const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, \\
    int M, int N, int K, int lda, int ldb, int ldc
#define ROW (blockIdx.y * blockDim.y + threadIdx.y)
#define COLUMN (blockIdx.x * blockDim.x + threadIdx.x)
"""
_NAIVE = """
extern "C" __global__ void entry(ARGS) {
    int i = ROW, j = COLUMN;
    if (i >= M || j >= N) return;
    float sum = 0.f;
    for (int k = 0; k < K; k++) sum += A[(long long)i * lda + k] * B[(long long)j * ldb + k];
    STORE
}
"""
_RIGHT = "C[(long long)i * ldc + j] = sum;"
_TILED = """
extern "C" __global__ void __launch_bounds__(256) entry(ARGS) {
    extern __shared__ float shared[];
    float (*a)[68] = (float(*)[68])shared, (*b)[68] = a + 16;
    int t = threadIdx.x, m = blockIdx.y * 64, n = blockIdx.x * 64, y = t / 16 * 4, x = t % 16 * 4;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < K; k0 += 16) {
        for (int r = t / 16; r < 64; r += 16) {
            int k = k0 + t % 16;
            a[t % 16][r] = m + r < M && k < K ? A[(long long)(m + r) * lda + k] : 0.f;
            b[t % 16][r] = n + r < N && k < K ? B[(long long)(n + r) * ldb + k] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += a[k][y + i] * b[k][x + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (m + y + i < M && n + x + j < N) C[(long long)(m + y + i) * ldc + n + x + j] = sum[i][j];
}
"""
_SPLIT = """
extern "C" __global__ void part(ARGS, float* sums) {
    int i = ROW, j = COLUMN, half = (K + 1) / 2, first = blockIdx.z * half, last = min(K, first + half);
    if (i >= M || j >= N) return;
    float sum = 0.f;
    for (int k = first; k < last; k++) sum += A[(long long)i * lda + k] * B[(long long)j * ldb + k];
    atomicAdd(&sums[(long long)i * N + j], sum);
}
extern "C" __global__ void entry(ARGS, float* sums) {
    int i = ROW, j = COLUMN;
    if (i < M && j < N) C[(long long)i * ldc + j] = sums[(long long)i * N + j];
}
"""
_COPY_ENGINE = """
struct __align__(64) CUtensorMap_st { char opaque[128]; };
typedef unsigned u32;
__device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void fetch(void* to, const CUtensorMap_st* map, int x, int y, void* bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];"
        :: "r"(at(to)), "l"(map), "r"(at(bar)), "r"(x), "r"(y) : "memory");
}
extern "C" __global__ void __launch_bounds__(256) entry(
        const __grid_constant__ CUtensorMap_st A, const __grid_constant__ CUtensorMap_st B, float* C,
        int M, int N, int K, int ldc) {
    __shared__ __align__(128) float a[64][32], b[64][32];
    __shared__ unsigned long long bar;
    int t = threadIdx.x, m = blockIdx.y * 64, n = blockIdx.x * 64, y = t / 16 * 4, x = t % 16 * 4;
    float sum[4][4] = {};
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    for (int k = 0, phase = 0; k < K; k += 32, phase ^= 1) {
        if (t == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                :: "r"(at(&bar)), "r"(2 * 64 * 32 * 4) : "memory");
            fetch(a, &A, k, m, &bar);
            fetch(b, &B, k, n, &bar);
        }
        u32 done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(done) : "r"(at(&bar)), "r"(phase) : "memory");
        for (int s = 0; s < 32; s++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += a[y + i][s] * b[x + j][s];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (m + y + i < M && n + x + j < N) C[(long long)(m + y + i) * ldc + n + x + j] = sum[i][j];
}
"""
_CLUSTER = """
extern "C" __global__ void entry(ARGS) {
    unsigned size;
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    int i = ROW, j = COLUMN;
    if (i >= M || j >= N) return;
    float sum = size == 2 ? 0.f : 1e9f;
    for (int k = 0; k < K; k++) sum += A[(long long)i * lda + k] * B[(long long)j * ldb + k];
    C[(long long)i * ldc + j] = sum;
}
"""


def _arguments(*more: Arg, tensors: tuple[str, ...] = ("A", "B", "C")) -> tuple[Arg, ...]:
    return (*(TensorArg(name) for name in tensors), *(ScalarArg("i32", size) for size in _SIZES), *more)


def _kernel(name: str, text: str, *steps: Step, flags: tuple[str, ...] = ()) -> Kernel:
    return Kernel(name, "cuda", (Source(f"{name}.cu", _HEAD + text),), flags, LaunchPlan(steps))


def _flat(entry: str = "entry", *more: Arg, z: int = 1, cluster: tuple[int, ...] = (1, 1, 1), shared: int = 0) -> Step:
    grid = ("ceil_div(N, 32)", "ceil_div(M, 8)", z)
    return Step(entry, _arguments(*more), grid=grid, block=(32, 8, 1), cluster=cluster, shared_bytes=shared)


def naive(name: str = "naive", store: str = _RIGHT, shared: int = 0) -> Kernel:
    """One thread an element; `store` is how it writes its sum."""
    return _kernel(name, _NAIVE.replace("STORE", store), _flat(shared=shared))


def tiled(variant: int = 0) -> Kernel:
    """A block of 64 x 64 in shared memory; `variant` makes otherwise equal kernels differ."""
    grid = ("ceil_div(N, 64)", "ceil_div(M, 64)", 1)
    step = Step("entry", _arguments(), grid=grid, block=(256, 1, 1), shared_bytes=2 * 16 * 68 * 4)
    return _kernel("tiled", _TILED, step, flags=(f"-DVARIANT={variant}",))


def split() -> Kernel:
    """Two parts of K added up in a zeroed workspace, then copied: two launches."""
    sums = WorkspaceArg("sums", "4 * M * N", zeroed=True)
    return _kernel("split", _SPLIT, _flat("part", sums, z=2), _flat("entry", sums))


def cluster() -> Kernel:
    """Blocks launched in pairs; wrong when they are not."""
    grid = ("2 * ceil_div(N, 64)", "ceil_div(M, 8)", 1)
    return _kernel("cluster", _CLUSTER, Step("entry", _arguments(), grid=grid, block=(32, 8, 1), cluster=(2, 1, 1)))


def copy_engine() -> Kernel:
    """Tiles fetched through tensor maps."""
    maps = tuple(DescriptorArg(name, TensorMapSpec((32, 64))) for name in ("A", "B"))
    sizes = tuple(ScalarArg("i32", size) for size in ("M", "N", "K", "ldc"))
    grid = ("ceil_div(N, 64)", "ceil_div(M, 64)", 1)
    return _kernel(
        "copy_engine", _COPY_ENGINE, Step("entry", (*maps, TensorArg("C"), *sizes), grid=grid, block=(256, 1, 1))
    )


_ODD = "*(float*)((char*)C + 4 * ((long long)i * ldc + j) + 1) = sum;"
_LAST, _FIRST = " if (i == M - 1 && j == N - 1) ", " if (i == 0 && j == 0) "

# What is wrong, the kernel, the verdict it must get.
FAULTS = (
    ("illegal address", naive("illegal", "C[(long long)i * ldc + j + (1ll << 40)] = sum;"), "crashed"),
    ("misaligned address", naive("misaligned", _ODD), "crashed"),
    ("infinite loop", naive("endless", "while (((volatile float*)C)[0] != 42.f) ; C[0] = sum;"), "timed_out"),
    ("too much shared memory", naive("greedy", _RIGHT, shared=1 << 20), "refused"),
    ("writes past the end", naive("past", _RIGHT + _LAST + "C[(long long)M * ldc + 7] = 1.f;"), "wrong"),
    ("writes before the start", naive("before", _RIGHT + _FIRST + "C[-3] = 1.f;"), "wrong"),
    ("writes to its input", naive("spoils", _RIGHT + _FIRST + "((float*)A)[5] = 1.f;"), "wrong"),
    ("leaves an element out", naive("omits", "if (i || j) " + _RIGHT), "wrong"),
    ("wrong by a little", naive("off", "C[(long long)i * ldc + j] = sum * 1.001f;"), "wrong"),
    ("does not compile", naive("broken", "this is no C;"), "build_failed"),
)

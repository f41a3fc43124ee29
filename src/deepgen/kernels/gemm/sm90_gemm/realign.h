// Copies of A and B whose lines begin at multiples of 16 bytes, as the copy engine asks for.
//
// A copy costs its bytes and a launch once; to realign while tiles are loaded (lines.h) costs more for every tile that
// uses them.
#pragma once
#include "shifted.h"

// A matrix, or a batch of them, and its copy. Sizes and distances in bytes.
struct Copied {
    const char* from;
    char* to;
    int line, lines, matrices;     // bytes that count, lines of a matrix
    i64 line_apart, matrix_apart;  // in the original
    int pitch;                     // from line to line in the copy
};

constexpr int COPY_THREADS = 256, COPY_EACH = 4;
constexpr u32 COPY_BLOCK = COPY_THREADS * COPY_EACH;  // chunks of a block

// `begin` and `end`: of the whole tensor, beyond which nothing is read.
DG_DEVICE uint4 chunk_from(const char* from, int count, const char* begin, const char* end) {
    u32 shift = (u64)from & 15;
    const char* first = from - shift;
    bool two = shift + count > 16;
    if (first >= begin && first + (two ? 32 : 16) <= end) {
        uint4 a = __ldg(reinterpret_cast<const uint4*>(first));
        uint4 b = two ? __ldg(reinterpret_cast<const uint4*>(first + 16)) : a;
        return shifted(a, b, shift);
    }
    u32 w[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i)
        if (i < count) w[i / 4] |= (u32)(unsigned char)from[i] << i % 4 * 8;
    return {w[0], w[1], w[2], w[3]};
}

DG_DEVICE u32 chunks_of(const Copied& m) { return (u32)((m.line + 15) / 16) * m.lines * m.matrices; }

DG_DEVICE void copy_block(const Copied& m, u32 block) {
    u32 in_line = (m.line + 15) / 16, all = chunks_of(m), lines = m.lines;
    bool even = m.matrices == 1 || m.matrix_apart == m.line_apart * m.lines;
    const char* end = m.from + (m.matrices - 1) * m.matrix_apart + (m.lines - 1) * m.line_apart + m.line;
    uint4 got[COPY_EACH];
    char* to[COPY_EACH];
#pragma unroll
    for (int i = 0; i < COPY_EACH; ++i) {
        u32 now = block * COPY_BLOCK + i * COPY_THREADS + threadIdx.x;
        u32 line = now / in_line, chunk = now - line * in_line;
        to[i] = nullptr;
        if (now >= all) continue;
        u32 matrix = even ? 0 : line / lines;
        const char* from = m.from + matrix * m.matrix_apart + (line - matrix * lines) * m.line_apart + chunk * 16;
        got[i] = chunk_from(from, min(m.line - (int)chunk * 16, 16), m.from, end);
        to[i] = m.to + (i64)line * m.pitch + chunk * 16;
    }
#pragma unroll
    for (int i = 0; i < COPY_EACH; ++i)
        if (to[i]) *reinterpret_cast<uint4*>(to[i]) = got[i];
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) realign(
    const char* a, char* a_copy, int a_line, int a_lines, i64 a_apart, i64 a_matrix, int a_pitch,
    const char* b, char* b_copy, int b_line, int b_lines, i64 b_apart, i64 b_matrix, int b_pitch, int matrices
) {
    next_may_begin();
    u32 first = 0;
#if REALIGN & 1
    const Copied of_a{a, a_copy, a_line, a_lines, matrices, a_apart, a_matrix, a_pitch};
    first = (chunks_of(of_a) + COPY_BLOCK - 1) / COPY_BLOCK;
    if (blockIdx.x < first) return copy_block(of_a, blockIdx.x);
#endif
#if REALIGN & 2
    const Copied of_b{b, b_copy, b_line, b_lines, matrices, b_apart, b_matrix, b_pitch};
    copy_block(of_b, blockIdx.x - first);
#endif
}

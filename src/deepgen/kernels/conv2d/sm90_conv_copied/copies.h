// The image and the filters in nhwc with channels in multiples of 8, and the result as it was asked for.
//
// Planes are transposed in shared memory, 64 places by 64 channels at a time: what threads read and what they write is
// contiguous then. With channels last, a thread has eight channels of one place.
#pragma once

typedef unsigned short Bits;  // of a number of 16 bits
typedef unsigned int Word;    // two of them

constexpr int COPY_THREADS = 256, EIGHT = 8, SIDE = 64;
constexpr int BLOCKS_CI = (STORED_CI + SIDE - 1) / SIDE, BLOCKS_CO = (STORED_CO + SIDE - 1) / SIDE;

struct alignas(16) Chunk {
    Word v[4];
};

#if PLANES
typedef Word Transposed[SIDE][SIDE / 2 + 1];  // places by pairs of channels; lanes of neighbouring places meet no bank

// A block's part of a transposition: of the image, of the filters (whose places are channels and taps), of the result.
struct Part {
    bool filters;
    i64 place;  // its first
    int channel;
};

__device__ __forceinline__ Part part_of(i64 block, i64 pixels) {
    const i64 images = (pixels + SIDE - 1) / SIDE * BLOCKS_CI;
    if (block < images) return {false, block / BLOCKS_CI * SIDE, (int)(block % BLOCKS_CI) * SIDE};
    block -= images;
    return {true, block / BLOCKS_CO * SIDE, (int)(block % BLOCKS_CO) * SIDE};
}

__device__ __forceinline__ void gather_in(Transposed& tile, const Bits* x, const Bits* weight, Part part, i64 pixels) {
    const i64 place = part.place + threadIdx.x % SIDE, apart = part.filters ? SOURCE_CI * FILTER_TAPS : IMAGE_AREA;
    const bool real = place < (part.filters ? SOURCE_CI * FILTER_TAPS : pixels);
    const Bits* from = part.filters ? weight + place : x + (place / IMAGE_AREA * SOURCE_CI * IMAGE_AREA + place % IMAGE_AREA);
    const int channels = real ? part.filters ? SOURCE_CO : SOURCE_CI : 0;
    Bits got[SIDE * SIDE / COPY_THREADS];
#pragma unroll
    for (int i = 0; i < SIDE * SIDE / COPY_THREADS; ++i) {
        const int channel = part.channel + (i / 2 * (COPY_THREADS / SIDE) + threadIdx.x / SIDE) * 2 + i % 2;
        got[i] = channel < channels ? __ldg(from + channel * apart) : (Bits)0;
    }
#pragma unroll
    for (int i = 0; i < SIDE * SIDE / COPY_THREADS; i += 2)
        tile[threadIdx.x % SIDE][i / 2 * (COPY_THREADS / SIDE) + threadIdx.x / SIDE] = got[i] | (Word)got[i + 1] << 16;
}

__device__ __forceinline__ void gather_out(const Transposed& tile, Bits* images, Bits* filters, Part part, i64 pixels) {
#pragma unroll
    for (int unit = threadIdx.x; unit < SIDE * (SIDE / EIGHT); unit += COPY_THREADS) {
        const i64 place = part.place + unit / (SIDE / EIGHT);
        const int chunk = unit % (SIDE / EIGHT), channel = part.channel + chunk * EIGHT;
        if (place >= (part.filters ? STORED_CI * FILTER_TAPS : pixels)) continue;
        if (channel >= (part.filters ? STORED_CO : STORED_CI)) continue;
        Bits* to = part.filters ? filters + (place % FILTER_TAPS * STORED_CI + place / FILTER_TAPS) * STORED_CO
                                : images + place * STORED_CI;
        const Word* from = tile[unit / (SIDE / EIGHT)] + chunk * 4;
        *reinterpret_cast<Chunk*>(to + channel) = {from[0], from[1], from[2], from[3]};
    }
}

__device__ __forceinline__ void scatter_in(Transposed& tile, const Bits* result, i64 first, int channels, i64 pixels) {
#pragma unroll
    for (int unit = threadIdx.x; unit < SIDE * (SIDE / EIGHT); unit += COPY_THREADS) {
        const i64 place = first + unit / (SIDE / EIGHT);
        const int chunk = unit % (SIDE / EIGHT), channel = channels + chunk * EIGHT;
        if (place >= pixels || channel >= STORED_CO) continue;
        const Chunk got = *reinterpret_cast<const Chunk*>(result + place * STORED_CO + channel);
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[unit / (SIDE / EIGHT)][chunk * 4 + i] = got.v[i];
    }
}

__device__ __forceinline__ void scatter_out(const Transposed& tile, Bits* y, i64 first, int channels, i64 pixels) {
    const i64 place = first + threadIdx.x % SIDE;
    if (place >= pixels) return;
    Bits* to = y + (place / RESULT_AREA * SOURCE_CO * RESULT_AREA + place % RESULT_AREA);
#pragma unroll
    for (int i = 0; i < SIDE * SIDE / COPY_THREADS; ++i) {
        const int pair = i / 2 * (COPY_THREADS / SIDE) + threadIdx.x / SIDE, channel = channels + pair * 2 + i % 2;
        if (channel < SOURCE_CO)
            to[(i64)channel * RESULT_AREA] = (Bits)(tile[threadIdx.x % SIDE][pair] >> i % 2 * 16);
    }
}

#ifndef COPIES_ON_CPU
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    gather(const Bits* x, const Bits* weight, Bits* images, Bits* filters, int n) {
    __shared__ Transposed tile;
    next_may_begin();
    const i64 pixels = (i64)n * IMAGE_AREA;
    const Part part = part_of(blockIdx.x, pixels);
    gather_in(tile, x, weight, part, pixels);
    __syncthreads();
    gather_out(tile, images, filters, part, pixels);
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) scatter(const Bits* result, Bits* y, int n) {
    __shared__ Transposed tile;
    const i64 pixels = (i64)n * RESULT_AREA, first = (i64)(blockIdx.x / BLOCKS_CO) * SIDE;
    const int channels = (int)(blockIdx.x % BLOCKS_CO) * SIDE;
    wait_for_launch_before();
    scatter_in(tile, result, first, channels, pixels);
    __syncthreads();
    scatter_out(tile, y, first, channels, pixels);
}
#endif
#else
// Eight channels of one place; zeros beyond `left`. Where rows have an even length, all of them begin at whole words.
template <int LENGTH>
__device__ __forceinline__ void gather_channels(Bits* to, const Bits* from, int left) {
    Word got[4];
#pragma unroll
    for (int c = 0; c < EIGHT; c += 2) {
        if (LENGTH % 2 == 0) {
            got[c / 2] = c < left ? __ldg(reinterpret_cast<const Word*>(from + c)) : 0;
        } else {
            const Word low = c < left ? __ldg(from + c) : 0, high = c + 1 < left ? __ldg(from + c + 1) : 0;
            got[c / 2] = low | high << 16;
        }
    }
    *reinterpret_cast<Chunk*>(to) = {got[0], got[1], got[2], got[3]};
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    gather(const Bits* x, const Bits* weight, Bits* images, Bits* filters, int n) {
    next_may_begin();
    i64 unit = (i64)blockIdx.x * COPY_THREADS + threadIdx.x;
    const i64 all = COPIES_X ? (i64)n * IMAGE_AREA * (STORED_CI / EIGHT) : 0;
    const i64 units = (all + COPY_THREADS - 1) / COPY_THREADS * COPY_THREADS;
    if (unit < units) {
        const i64 pixel = unit / (STORED_CI / EIGHT);
        const int first = (int)(unit % (STORED_CI / EIGHT)) * EIGHT;
        if (unit < all) gather_channels<SOURCE_CI>(images + unit * EIGHT, x + pixel * SOURCE_CI + first, SOURCE_CI - first);
        return;
    }
    unit -= units;
    if (unit >= (i64)FILTER_TAPS * STORED_CI * (STORED_CO / EIGHT)) return;
    const int row = (int)(unit / (STORED_CO / EIGHT)), first = (int)(unit % (STORED_CO / EIGHT)) * EIGHT;
    const int tap = row / STORED_CI, channel = row % STORED_CI;
    const Bits* from = weight + ((i64)tap * SOURCE_CI + channel) * SOURCE_CO + first;
    gather_channels<SOURCE_CO>(filters + unit * EIGHT, from, channel < SOURCE_CI ? SOURCE_CO - first : 0);
}

// Eight neighbours of the result for each thread, whatever places they belong to: whole sectors are stored, and what
// threads read beside each other comes from the L1 cache.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) scatter(const Bits* result, Bits* y, int n) {
    constexpr int OF_BLOCK = COPY_THREADS * EIGHT;
    const i64 first = (i64)blockIdx.x * OF_BLOCK, all = (i64)n * RESULT_AREA * SOURCE_CO, pixel = first / SOURCE_CO;
    const int own = threadIdx.x * EIGHT, from = (int)(first - pixel * SOURCE_CO) + own;
    const Bits* near = result + pixel * STORED_CO;
    const i64 left = all - first - own;
    Bits got[EIGHT];
    wait_for_launch_before();
#pragma unroll
    for (int c = 0; c < EIGHT; c += 1 + (SOURCE_CO % 2 == 0)) {
        const int row = (from + c) / SOURCE_CO;
        const Bits* at = near + (i64)row * STORED_CO + (from + c - row * SOURCE_CO);
        if (SOURCE_CO % 2 == 0) {
            const Word both = c < left ? *reinterpret_cast<const Word*>(at) : 0;
            got[c] = (Bits)both, got[c + 1] = (Bits)(both >> 16);
        } else {
            got[c] = c < left ? *at : (Bits)0;
        }
    }
    Bits* to = y + first + own;
    if (left >= EIGHT) {
        Chunk whole;
#pragma unroll
        for (int i = 0; i < 4; ++i) whole.v[i] = got[2 * i] | (Word)got[2 * i + 1] << 16;
        *reinterpret_cast<Chunk*>(to) = whole;
    } else {
#pragma unroll
        for (int c = 0; c < EIGHT; ++c)
            if (c < left) to[c] = got[c];
    }
}
#endif

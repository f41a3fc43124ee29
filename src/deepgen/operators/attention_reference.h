// What references of attention on a device share: numbers of any format, and rows of them in shared memory.
#ifndef DG_ATTENTION_REFERENCE_H
#define DG_ATTENTION_REFERENCE_H
#include "reference_device.h"

enum { ROWS = 16 };

// 16 bits.
DG_DEVICE f64 half(const void* from, i64 i) {
    const int fraction_bits = FORMAT == 1 ? 10 : 7, top = FORMAT == 1 ? 31 : 255;
    u32 bits = load_global<u16>((const u16*)from + i);
    u32 fraction = bits & ((1u << fraction_bits) - 1);
    int exponent = bits >> fraction_bits & top;
    union { u64 bits; f64 value; } power = {(u64)((exponent ? exponent : 1) - top / 2 - fraction_bits + 1023) << 52};
    f64 size = (fraction | (exponent ? 1u << fraction_bits : 0)) * power.value;
    if (exponent == top) {  // not a number, or infinite
        power.bits = (u64)2047 << 52 | fraction;
        size = power.value;
    }
    return bits >> 15 ? -size : size;
}
DG_DEVICE f64 number(const void* from, i64 i) {
#if FORMAT == 0
    return load_global<f32>((const f32*)from + i);
#elif FORMAT == 3
    const u32 bits = load_global<u8>((const u8*)from + i), exponent = bits >> 3 & 15, fraction = bits & 7;
    union { u64 bits; f64 value; } power = {(u64)((exponent ? exponent : 1) - 10 + 1023) << 52};
    f64 size = (fraction | (exponent ? 8 : 0)) * power.value;
    if ((bits & 127) == 127) {  // not a number
        power.bits = (u64)2047 << 52 | 1;
        size = power.value;
    }
    return bits >> 7 ? -size : size;
#else
    return half(from, i);
#endif
}
// Of a bias: 16 bits where the rest has 8.
DG_DEVICE f64 number_added(const void* from, i64 i) { return FORMAT == 3 ? half(from, i) : number(from, i); }

struct Place {  // of a head in a tensor
    const void* at;
    i64 row, offset;
};

// Rows of a tensor in shared memory, zeros beyond the last.
DG_DEVICE void fetch(u32 to, const Place& from, i64 first, i64 rows, int width) {
    for (int i = thread_id(); i < ROWS * width; i += ROWS * ROWS)
        store_shared<f64>(
            to + i * 8,
            first + i / width < rows ? number(from.at, from.offset + (first + i / width) * from.row + i % width) : 0.0);
}

#endif

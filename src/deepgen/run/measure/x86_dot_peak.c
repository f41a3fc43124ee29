// What a core can do at best in bf16 or 8 bits: dot products on registers alone, of AMX tiles or of vectors.
//
// -DBF16=1 or 0, -DTILES=1 or 0. The same functions as cpu_peak.c, which gives the reading of memory.
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define deepgen_peak_flops deepgen_peak_flops_f32
#define deepgen_peak_compute deepgen_peak_compute_f32
#include "cpu_peak.c"
#undef deepgen_peak_flops
#undef deepgen_peak_compute

#if TILES
int64_t deepgen_peak_flops(void) { return 4 * 2 * 16 * 16 * (BF16 ? 32 : 64); }

double deepgen_peak_compute(int64_t iterations, const char *numbers) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) shapes = {.palette = 1,
                                             .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                             .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    syscall(SYS_arch_prctl, 0x1023, 18);  // Linux gives tiles only to processes that ask for them
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
#define FILL(tile, from) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(64l) : "memory")
    FILL(4, numbers);
    FILL(5, numbers + 1024);
    FILL(6, numbers + 2048);
    FILL(7, numbers + 3072);
#if BF16
#define DOT(to, left, right) __asm__ volatile("tdpbf16ps %tmm" #right ", %tmm" #left ", %tmm" #to)
#else
#define DOT(to, left, right) __asm__ volatile("tdpbssd %tmm" #right ", %tmm" #left ", %tmm" #to)
#endif
    double started = now();
    for (int64_t t = 0; t < iterations; t++) {
        DOT(0, 4, 6);
        DOT(1, 4, 7);
        DOT(2, 5, 6);
        DOT(3, 5, 7);
    }
    double ended = now();
    __asm__ volatile("tilerelease");
    return ended - started;
}
#else
int64_t deepgen_peak_flops(void) { return 2 * CHAINS * BYTES / (BF16 ? 2 : 1); }

double deepgen_peak_compute(int64_t iterations, const char *numbers) {
    typedef int whole __attribute__((vector_size(BYTES)));
    whole x[2], y, c[CHAINS] = {{0}};
    __builtin_memcpy(x, numbers, sizeof x);
    __builtin_memcpy(&y, numbers + sizeof x, sizeof y);
    double started = now();
    for (int64_t t = 0; t < iterations; t++)
#if BF16
#define DOT "vdpbf16ps"
#elif defined(__AVX512F__)
#define DOT "vpdpbusd"
#else
#define DOT "%{vex%} vpdpbusd"
#endif
        for (int i = 0; i < CHAINS; i++) __asm__ volatile(DOT " %1, %2, %0" : "+v"(c[i]) : "v"(x[i % 2]), "v"(y));
    return now() - started;
}
#endif

// AMX tiles under short names. The same source runs on any processor with -DEMULATE, where emulate.h takes their place.
//
// Tile registers are numbered by compile-time constants: loops over them must be unrolled.
#include <stdint.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) tile_shapes;

#ifdef EMULATE
#include "emulate.h"
#else
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux gives the large state of tiles only to processes that ask for it. Once for all threads, when this is loaded.
static int tiles_refused;
__attribute__((constructor)) static void tile_permission(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
    tiles_refused = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) != 0;
}

// Why this library cannot work here, in words; 0 when it can. Who loads it asks before the first call.
const char *deepgen_refusal(void) {
    return tiles_refused ? "this system does not let processes use AMX tiles (arch_prctl refused them): "
                           "tune for x86:avx512_bf16 or x86:avx512_vnni instead"
                         : 0;
}

ALWAYS_INLINE void tile_configure(const tile_shapes *shapes) {
    if (tiles_refused) {  // nobody asked: better a word than an illegal instruction
        fprintf(stderr, "deepgen: %s\n", deepgen_refusal());
        abort();
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(*shapes) : "memory");
}
ALWAYS_INLINE void tile_release(void) { __asm__ volatile("tilerelease" ::: "memory"); }
ALWAYS_INLINE void tile_zero(int t) { __asm__ volatile("tilezero %%tmm%c0" ::"i"(t)); }
ALWAYS_INLINE void tile_load(int t, const void *from, long stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(t), "r"(from), "r"(stride) : "memory");
}
// For what passes by: it does not push what stays out of L1.
ALWAYS_INLINE void tile_stream(int t, const void *from, long stride) {
    __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(t), "r"(from), "r"(stride) : "memory");
}
ALWAYS_INLINE void tile_store(int t, void *to, long stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(t), "r"(to), "r"(stride) : "memory");
}
#define TILE_DOT(name, instruction)                                                                                 \
    ALWAYS_INLINE void name(int to, int left, int right) {                                                          \
        __asm__ volatile(instruction " %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(to), "i"(left), "i"(right));             \
    }
#if BF16
TILE_DOT(tile_dot, "tdpbf16ps")
#elif LEFT_SIGNED && RIGHT_SIGNED
TILE_DOT(tile_dot, "tdpbssd")
#elif LEFT_SIGNED
TILE_DOT(tile_dot, "tdpbsud")
#elif RIGHT_SIGNED
TILE_DOT(tile_dot, "tdpbusd")
#else
TILE_DOT(tile_dot, "tdpbuud")
#endif
#endif

// The RISC-V instructions by class and by how many vector registers each works on, and counts of them.
//
// qemu translates code in blocks, and a block that sets the vector type ends there. So the type is one throughout a
// block, and it is enough to count how often each block was entered with which type. Counts are written as lines
// `CLASS EIGHTHS COUNT`; EIGHTHS is the size of the register group in eighths of a register, 0 where there are no vectors.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES(X)                                                                                                  \
    X(scalar) X(scalar_float) X(scalar_divide) X(load) X(store) X(branch) X(other) X(vset) X(vector_arithmetic)       \
    X(vector_widening) X(vector_divide) X(vector_reduction) X(vector_permutation) X(vector_move) X(vector_load_unit)  \
    X(vector_load_strided) X(vector_load_indexed) X(vector_load_segment) X(vector_store_unit) X(vector_store_strided) \
    X(vector_store_indexed) X(vector_store_segment)
#define NAME(x) #x,
#define VALUE(x) x,
typedef enum { CLASSES(VALUE) classes } class;
static const char *const names[] = {CLASSES(NAME)};

enum { MARK_BEGIN = 0x12302013, MARK_END = 0x12402013, TYPES = 65, UNKNOWN = 64, MOST_CPUS = 256, KEEP = -1 };

// One instruction: registers = fixed, or those of the type's group times `times`, scaled by `eew` over its elements.
typedef struct {
    class class;
    int times, eew, fixed;  // fixed in eighths
} part;

typedef struct block {
    struct block *next;
    int sets;  // the vector type that it leaves, KEEP where it sets none
    unsigned count;
    uint64_t entries[TYPES];
    part parts[];
} block;

static int bits(uint32_t word, int high, int low) { return (int)(word >> low & ((1u << (high - low + 1)) - 1)); }

static part compressed(uint32_t w) {
    int quadrant = bits(w, 1, 0), f = bits(w, 15, 13);
    if (quadrant == 1) return (part){.class = f >= 5 ? branch : scalar};
    if (quadrant == 2 && f == 4) return (part){.class = !bits(w, 6, 2) && bits(w, 11, 7) ? branch : scalar};
    if (f == 1 || f == 2 || f == 3) return (part){.class = load};
    return (part){.class = f >= 5 ? store : scalar};
}

// A vector load or store: by how it finds its elements.
static part memory(uint32_t w, bool stores) {
    static const int widths[] = {8, 0, 0, 0, 0, 16, 32, 64};
    int mode = bits(w, 27, 26), fields = bits(w, 31, 29) + 1, kind = bits(w, 24, 20), eew = widths[bits(w, 14, 12)];
    class first = stores ? vector_store_unit : vector_load_unit;
    if (mode == 0 && kind == 8) return (part){.class = first, .fixed = 8 * fields};  // whole registers
    if (mode == 0 && kind == 11) return (part){.class = first, .fixed = 1};          // a mask
    part found = {.class = first, .times = fields, .eew = mode == 1 || mode == 3 ? 0 : eew};
    if (fields > 1) found.class = first + 3;
    else if (mode == 2) found.class = first + 1;
    else if (mode) found.class = first + 2;
    return found;
}

static part arithmetic(uint32_t w) {
    enum { IVV, FVV, MVV, IVI, IVX, FVF, MVX };
    int form = bits(w, 14, 12), op = bits(w, 31, 26), source = bits(w, 19, 15);
    bool floats = form == FVV || form == FVF, masks = form == MVV || form == MVX, integers = !floats && !masks;
    part plain = {.class = vector_arithmetic, .times = 1};
    part wide = {.class = vector_widening, .times = 2};
    part permutes = {.class = vector_permutation, .times = 1};
    part reduces = {.class = vector_reduction, .times = 1};
    part divides = {.class = vector_divide, .times = 1};
    part moves = {.class = vector_move, .fixed = 8};
    if (integers) {
        if (op == 0x0c || op == 0x0e || op == 0x0f) return permutes;
        if (op == 0x27 && form == IVI) return (part){.class = vector_move, .fixed = 8 * (source + 1)};
        if (form == IVV && (op == 0x30 || op == 0x31)) return reduces;
        return op >= 0x2c && op <= 0x2f ? wide : plain;
    }
    if (op == 0x10) return moves;
    if (op == 0x0e || op == 0x0f) return permutes;
    if (masks) {
        if (form == MVV && op < 8) return reduces;
        if (op == 0x17) return permutes;
        if (op >= 0x18 && op <= 0x1f) return moves;
        if (op >= 0x20 && op <= 0x23) return divides;
        return op >= 0x30 ? wide : plain;
    }
    if (form == FVV && (op == 1 || op == 3 || op == 5 || op == 7 || op == 0x31 || op == 0x33)) return reduces;
    if (op == 0x20 || op == 0x21 || (op == 0x13 && source == 0)) return divides;
    if (op == 0x12) return source >= 8 ? wide : plain;
    return op >= 0x30 ? wide : plain;
}

static part classified(uint32_t w, size_t size) {
    if (size == 2) return compressed(w);
    int width = bits(w, 14, 12);
    bool vector = width == 0 || width >= 5;
    switch (bits(w, 6, 0)) {
        case 0x03: return (part){.class = load};
        case 0x23: return (part){.class = store};
        case 0x63: case 0x67: case 0x6f: return (part){.class = branch};
        case 0x13: case 0x1b: case 0x37: case 0x17: return (part){.class = scalar};
        case 0x33: case 0x3b: return (part){.class = bits(w, 31, 25) == 1 && width >= 4 ? scalar_divide : scalar};
        case 0x43: case 0x47: case 0x4b: case 0x4f: return (part){.class = scalar_float};
        case 0x53: return (part){.class = bits(w, 31, 27) == 3 || bits(w, 31, 27) == 11 ? scalar_divide : scalar_float};
        case 0x07: return vector ? memory(w, false) : (part){.class = load};
        case 0x27: return vector ? memory(w, true) : (part){.class = store};
        case 0x57: return width == 7 ? (part){.class = vset} : arithmetic(w);
        default: return (part){.class = other};
    }
}

// The vector type that an instruction sets, KEEP where it sets none.
static int set_by(uint32_t w, size_t size) {
    if (size == 2 || bits(w, 6, 0) != 0x57 || bits(w, 14, 12) != 7) return KEEP;
    bool given = !bits(w, 31, 31) || bits(w, 31, 30) == 3;
    return given ? bits(w, 25, 20) : UNKNOWN;
}

// Eighths of a register; -1 where the type is not known.
static int registers(part p, int type) {
    if (p.fixed || !p.times) return p.fixed;
    if (type == UNKNOWN) return -1;
    int lmul = type & 7, group = lmul < 4 ? 8 << lmul : 8 >> (8 - lmul), sew = 8 << (type >> 3 & 7);
    int eighths = p.eew ? group * p.eew / sew : group;
    return (eighths ? eighths : 1) * p.times;
}

enum { MOST_EIGHTHS = 1024 };

static void write_counts(const block *blocks, const char *out) {
    uint64_t(*totals)[MOST_EIGHTHS + 1] = calloc(classes, sizeof *totals);
    if (!totals) abort();
    for (const block *b = blocks; b; b = b->next)
        for (int type = 0; type < TYPES; type++)
            for (unsigned i = 0; b->entries[type] && i < b->count; i++) {
                int eighths = registers(b->parts[i], type);
                totals[b->parts[i].class][eighths < 0 || eighths > MOST_EIGHTHS ? MOST_EIGHTHS : eighths] += b->entries[type];
            }
    FILE *file = fopen(out, "w");
    for (int c = 0; file && c < classes; c++)
        for (int e = 0; e <= MOST_EIGHTHS; e++)
            if (totals[c][e]) fprintf(file, "%s %d %lu\n", names[c], e == MOST_EIGHTHS ? -1 : e, (unsigned long)totals[c][e]);
    if (file) fclose(file);
    free(totals);
}

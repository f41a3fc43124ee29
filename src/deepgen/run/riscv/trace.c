// Counts the RISC-V instructions between two marks from the log of a qemu that takes no plugins, as it writes it for
// `-d in_asm,exec,nochain`: the instructions of each block that it translates, then the blocks in the order in which they
// are executed, each named by the address of its translation.
#include "instructions.h"

enum { SLOTS = 1 << 16, MOST_IN_BLOCK = 1024, LINE = 1024 };

typedef struct seen {
    struct seen *next;
    uint64_t place;  // of the translation
    block *whole;    // where it has no mark
    block **each;    // else its instructions one by one
    unsigned count;
    int marks[];  // for each instruction: 0, MARK_BEGIN or MARK_END
} seen;

static block *made(block **blocks, const uint32_t *words, unsigned count) {
    block *b = calloc(1, sizeof *b + count * sizeof *b->parts);
    if (!b) abort();
    b->sets = KEEP, b->count = count;
    for (unsigned i = 0; i < count; i++) {
        uint32_t word = words[i];
        size_t size = (word & 3) == 3 ? 4 : 2;
        b->parts[i] = classified(word, size);
        if (set_by(word, size) != KEEP) b->sets = set_by(word, size);
    }
    b->next = *blocks;
    return *blocks = b;
}

static seen *translated(block **blocks, const uint32_t *words, unsigned count, uint64_t place) {
    seen *s = calloc(1, sizeof *s + count * sizeof *s->marks);
    if (!s) abort();
    s->place = place, s->count = count;
    bool whole = true;
    for (unsigned i = 0; i < count; i++) {
        s->marks[i] = words[i] == MARK_BEGIN || words[i] == MARK_END ? (int)words[i] : 0;
        if (s->marks[i]) whole = false;
        if (i + 1 < count && set_by(words[i], (words[i] & 3) == 3 ? 4 : 2) != KEEP) whole = false;
    }
    if (whole) {
        s->whole = made(blocks, words, count);
    } else {
        if (!(s->each = calloc(count, sizeof *s->each))) abort();
        for (unsigned i = 0; i < count; i++) s->each[i] = made(blocks, words + i, 1);
    }
    return s;
}

static void enter(block *b, bool counting, uint8_t *type) {
    if (counting) b->entries[*type]++;
    if (b->sets != KEEP) *type = (uint8_t)b->sets;
}

// Reads the log from a file descriptor to its end, and writes the counts. 0: all is well.
__attribute__((visibility("default"))) int count_trace(int input, const char *out) {
    FILE *log = fdopen(input, "r");
    if (!log) return 1;
    seen **slots = calloc(SLOTS, sizeof *slots);
    block *blocks = 0;
    uint8_t types[MOST_CPUS];
    memset(types, UNKNOWN, sizeof types);
    bool counting = false;
    int failed = !slots;
    char line[LINE];
    uint32_t words[MOST_IN_BLOCK];  // of the block that was translated last, and has not been executed yet
    unsigned pending = 0;
    while (!failed && fgets(line, sizeof line, log)) {
        unsigned long long place, at;
        unsigned cpu, word;
        if (line[0] == '0' && sscanf(line, "0x%llx: %x", &at, &word) == 2) {
            if (pending == MOST_IN_BLOCK) failed = 2;
            else words[pending++] = word;
        } else if (!strncmp(line, "IN:", 3)) {
            pending = 0;
        } else if (line[0] == 'T' && sscanf(line, "Trace %u: 0x%llx", &cpu, &place) == 2) {
            seen **slot = &slots[(place >> 4 ^ place >> 20) % SLOTS];
            if (pending) {
                seen *fresh = translated(&blocks, words, pending, place);
                fresh->next = *slot, *slot = fresh, pending = 0;
            }
            seen *s = *slot;
            while (s && s->place != place) s = s->next;
            if (!s) {
                failed = 3;
                break;
            }
            uint8_t *type = &types[cpu % MOST_CPUS];
            if (s->whole) enter(s->whole, counting, type);
            for (unsigned i = 0; !s->whole && i < s->count; i++) {
                if (s->marks[i]) counting = s->marks[i] == MARK_BEGIN;
                else enter(s->each[i], counting, type);
            }
        }
    }
    while (fgets(line, sizeof line, log)) continue;  // so that who writes it is not stopped
    fclose(log);
    if (!failed) write_counts(blocks, out);
    for (block *b = blocks, *next; b; b = next) next = b->next, free(b);
    for (int i = 0; slots && i < SLOTS; i++)
        for (seen *s = slots[i], *next; s; s = next) next = s->next, free(s->each), free(s);
    free(slots);
    return failed;
}

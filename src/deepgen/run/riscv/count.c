// A plugin of qemu that counts the RISC-V instructions that a program executes between two marks, and writes the counts to
// the file that its option `out` names. Blocks that contain a mark, or that set the vector type before their end, are
// counted instruction by instruction.
#include "instructions.h"

// What is used of qemu's plugin interface: API is its version. From 3 on an instruction's bytes are copied.
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*entered)(unsigned vcpu, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
#if API >= 3
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
#else
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
#endif
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, entered, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, entered, int flags, void *data);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *data);

__attribute__((visibility("default"))) int qemu_plugin_version = API;

static block *blocks;
static bool counting;
static uint8_t types[MOST_CPUS];
static char out[4096];

static void on_entry(unsigned vcpu, void *data) {
    block *b = data;
    uint8_t *type = &types[vcpu % MOST_CPUS];
    if (counting) __atomic_fetch_add(&b->entries[*type], 1, __ATOMIC_RELAXED);
    if (b->sets != KEEP) *type = (uint8_t)b->sets;
}

static void on_mark(unsigned vcpu, void *data) {
    (void)vcpu;
    counting = data != 0;
}

static uint32_t word_of(const struct qemu_plugin_insn *insn) {
    uint32_t word = 0;
    size_t size = qemu_plugin_insn_size(insn) < 4 ? 2 : 4;
#if API >= 3
    qemu_plugin_insn_data(insn, &word, size);
#else
    memcpy(&word, qemu_plugin_insn_data(insn), size);
#endif
    return word;
}

static block *made(struct qemu_plugin_tb *tb, size_t from, size_t count) {
    block *b = calloc(1, sizeof *b + count * sizeof *b->parts);
    if (!b) abort();
    b->sets = KEEP, b->count = (unsigned)count;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, from + i);
        uint32_t word = word_of(insn);
        size_t size = qemu_plugin_insn_size(insn);
        b->parts[i] = classified(word, size);
        if (set_by(word, size) != KEEP) b->sets = set_by(word, size);
    }
    do b->next = __atomic_load_n(&blocks, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&blocks, &b->next, b, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    return b;
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *tb) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(tb);
    bool whole = true;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint32_t word = word_of(insn);
        if (word == MARK_BEGIN || word == MARK_END) whole = false;
        if (i + 1 < count && set_by(word, qemu_plugin_insn_size(insn)) != KEEP) whole = false;
    }
    if (whole) {
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_entry, 0, made(tb, 0, count));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint32_t word = word_of(insn);
        if (word == MARK_BEGIN || word == MARK_END)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, 0, word == MARK_BEGIN ? &counting : 0);
        else
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_entry, 0, made(tb, i, 1));
    }
}

static void at_exit(plugin_id id, void *data) {
    (void)id, (void)data;
    write_counts(blocks, out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "out=", 4)) snprintf(out, sizeof out, "%s", argv[i] + 4);
    memset(types, UNKNOWN, sizeof types);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, at_exit, 0);
    return 0;
}

// Packed operands in huge pages: one place in the TLB covers 2 MB of them.
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE (2l << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static inline long whole_pages(long bytes) { return (bytes + HUGE_PAGE - 1) & -HUGE_PAGE; }

// The first border of a huge page in this memory.
static inline void *page_border(const void *memory) {
    return (void *)(((uintptr_t)memory + HUGE_PAGE - 1) & -(uintptr_t)HUGE_PAGE);
}

// So many bytes from there on, which take up to two such pages more. The kernel is asked once for each place.
static inline void *in_huge_pages(const void *memory, long bytes) {
    static _Atomic uintptr_t asked;
    void *start = page_border(memory);
    if (atomic_exchange(&asked, (uintptr_t)start) != (uintptr_t)start) {
        madvise(start, (size_t)whole_pages(bytes), MADV_HUGEPAGE);
        madvise(start, (size_t)whole_pages(bytes), MADV_COLLAPSE);  // what was written before; older kernels: later
    }
    return start;
}

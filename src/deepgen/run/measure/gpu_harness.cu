// The worker's own kernels, in CUDA and in HIP: is an answer right, was memory changed that should not be, and what
// brings a device into the state in which runs are timed.
//
// Checks run where the data lies, so that every run can be checked: a 64 MB answer takes microseconds here and a third
// of a second through the host.

#ifdef __HIP__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define THREAD ((unsigned long long)__builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x())
#define THREADS ((unsigned long long)__builtin_amdgcn_grid_size_x())
typedef unsigned long long u64;
__device__ static inline void add(u64* to, u64 value) {
    __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ static inline void raise(u64* to, u64 value) {
    __hip_atomic_fetch_max(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
#else
#define THREAD ((unsigned long long)blockIdx.x * 256 + threadIdx.x)
#define THREADS ((unsigned long long)gridDim.x * 256)
typedef unsigned long long u64;
__device__ static inline void add(u64* to, u64 value) { atomicAdd(to, value); }
__device__ static inline void raise(u64* to, u64 value) { atomicMax(to, value); }
#endif

enum { F64, F32, F16, BF16, I8, I32, I64 };

template <class To, class From>
__device__ static inline To as(From from) {
    static_assert(sizeof(To) == sizeof(From), "another size");
    union {
        From from;
        To to;
    } bits = {from};
    return bits.to;
}

__device__ static inline double half(unsigned short bits) {
    unsigned exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double value = exponent == 0    ? fraction * 0x1p-24
                   : exponent == 31 ? (fraction ? as<double>(0x7ff8000000000000ull) : as<double>(0x7ff0000000000000ull))
                                    : as<double>((u64)(exponent + 1008) << 52 | (u64)fraction << 42);
    return bits & 0x8000 ? -value : value;
}

__device__ static inline double widened(const void* from, u64 i, int kind) {
    switch (kind) {
        case F64: return ((const double*)from)[i];
        case F32: return ((const float*)from)[i];
        case F16: return half(((const unsigned short*)from)[i]);
        default: return as<float>((unsigned)((const unsigned short*)from)[i] << 16);
    }
}

__device__ static inline long long whole(const void* from, u64 i, int kind) {
    switch (kind) {
        case I8: return ((const signed char*)from)[i];
        case I32: return ((const int*)from)[i];
        default: return ((const long long*)from)[i];
    }
}

// found[0]: elements out of tolerance; found[1]: the bits of the largest error as a share of the tolerance, which
// order like the numbers because none is negative. Scales are in f64 for f64, else in f32.
extern "C" __global__ void dg_judge(const void* got, const void* want, const void* scale, u64 count, int each,
                                    int kind, double absolute, double relative, double largest, double smallest,
                                    u64* found) {
    const double infinity = as<double>(0x7ff0000000000000ull);
    u64 wrong = 0;
    double worst = 0.0;
    for (u64 i = THREAD; i < count; i += THREADS) {
        double share;
        if (kind >= I8) {
            share = whole(got, i, kind) == ((const long long*)want)[i] ? 0.0 : infinity;
        } else {
            double x = widened(got, i, kind), r = ((const double*)want)[i];
            double magnitude = r < 0 ? -r : r, off = x - r;
            double allowed = absolute * widened(scale, each ? i : 0, kind == F64 ? F64 : F32) + relative * magnitude + smallest;
            share = (off < 0 ? -off : off) / allowed;
            if (magnitude < infinity && allowed >= largest) {
                share = 0.0;  // nothing is known of it
            } else if (!(share < infinity)) {
                int same = x == r || (x != x && r != r);
                int overflow = (x == infinity && r > 0 || x == -infinity && r < 0) && magnitude + allowed >= largest;
                share = same || overflow ? 0.0 : infinity;
            }
        }
        wrong += !(share <= 1.0);
        worst = share > worst ? share : worst;
    }
    if (wrong) add(&found[0], wrong);
    if (worst > 0.0) raise(&found[1], as<u64>(worst));
}

// found[0]: words in which two regions differ, of four bytes where both lie on such a border and of one otherwise;
// found[1]: the first place of all, as ~place.
extern "C" __global__ void dg_differ(const unsigned char* a, const unsigned char* b, u64 bytes, u64* found) {
    const int wide = ((u64)a | (u64)b) % 4 == 0;
    const u64 words = wide ? bytes / 4 : 0;
    u64 differing = 0, first = ~0ull;
    for (u64 i = THREAD; i < words; i += THREADS) {
        if (((const unsigned*)a)[i] != ((const unsigned*)b)[i]) {
            differing++;
            first = i * 4 < first ? i * 4 : first;
        }
    }
    for (u64 i = words * 4 + THREAD; i < bytes; i += THREADS) {
        if (a[i] != b[i]) {
            differing++;
            first = i < first ? i : first;
        }
    }
    if (differing) {
        add(&found[0], differing);
        raise(&found[1], ~first);
    }
}

// Reads a buffer, so that the last-level cache holds it and nothing else, and no line that must still be written back.
// `never`: a value that its words do not combine to, so nothing is written; a compiler cannot know that.
extern "C" __global__ void dg_read(const u64* from, u64 words, u64 never, u64* found) {
    u64 all = 0;
    for (u64 i = THREAD; i < words; i += THREADS) all |= from[i];
    if (all == never) *found = all;
}

// Keeps the device busy for about so many cycles with one thread and no memory.
extern "C" __global__ void dg_hold(u64 cycles) {
#ifdef __HIP__
    for (u64 i = 0; i < cycles; i += 64) __builtin_amdgcn_s_sleep(1);  // about 64 cycles; not all chips count them
#else
    for (long long start = clock64(); (u64)(clock64() - start) < cycles;) {}
#endif
}

// Does nothing: what a launch costs.
extern "C" __global__ void dg_nothing() {}

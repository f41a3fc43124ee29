// Atomic operations on memory that programs of a grid share. All give what was there before.
#define WHOLE_ATOMICS(name, T, U)                                                                                  \
    static inline T atomic_add_##name(T *p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_ACQ_REL); }            \
    static inline T atomic_and_##name(T *p, T x) { return __atomic_fetch_and(p, x, __ATOMIC_ACQ_REL); }            \
    static inline T atomic_or_##name(T *p, T x) { return __atomic_fetch_or(p, x, __ATOMIC_ACQ_REL); }              \
    static inline T atomic_xor_##name(T *p, T x) { return __atomic_fetch_xor(p, x, __ATOMIC_ACQ_REL); }            \
    static inline T atomic_exchange_##name(T *p, T x) { return __atomic_exchange_n(p, x, __ATOMIC_ACQ_REL); }      \
    static inline T atomic_cas_##name(T *p, T is, T to) {                                                          \
        __atomic_compare_exchange_n(p, &is, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);                            \
        return is;                                                                                                 \
    }                                                                                                              \
    CHANGED(max, name, T, T, is, x > is ? x : is)                                                                  \
    CHANGED(min, name, T, T, is, x < is ? x : is)                                                                  \
    CHANGED(umax, name, T, T, is, (U)x > (U)is ? x : is)                                                           \
    CHANGED(umin, name, T, T, is, (U)x < (U)is ? x : is)

// `to` is what a number becomes, by what it `is`; B are whole numbers of its size.
#define CHANGED(kind, name, T, B, read, to)                                                                \
    static inline T atomic_##kind##_##name(T *p, T x) {                                                    \
        B now, next;                                                                                       \
        __atomic_load((B *)p, &now, __ATOMIC_ACQUIRE);                                                     \
        for (;;) {                                                                                         \
            T is, becomes;                                                                                 \
            memcpy(&is, &now, sizeof is);                                                                  \
            becomes = to;                                                                                  \
            memcpy(&next, &becomes, sizeof next);                                                          \
            if (__atomic_compare_exchange((B *)p, &now, &next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))     \
                return is;                                                                                 \
        }                                                                                                  \
    }
WHOLE_ATOMICS(i32, int32_t, uint32_t)
WHOLE_ATOMICS(i64, int64_t, uint64_t)
CHANGED(add, f32, float, int32_t, is, is + x)
CHANGED(max, f32, float, int32_t, is, maxnum_f32(is, x))
CHANGED(min, f32, float, int32_t, is, minnum_f32(is, x))
CHANGED(exchange, f32, float, int32_t, is, x)
CHANGED(add, f64, double, int64_t, is, is + x)
CHANGED(max, f64, double, int64_t, is, maxnum_f64(is, x))
CHANGED(min, f64, double, int64_t, is, minnum_f64(is, x))
CHANGED(exchange, f64, double, int64_t, is, x)

#define NARROW_ATOMICS(name)                                                                               \
    static inline float atomic_add_##name(name##_t *p, float x) {                                          \
        int16_t now, next;                                                                                 \
        __atomic_load((int16_t *)p, &now, __ATOMIC_ACQUIRE);                                               \
        do {                                                                                               \
            next = bits_##name##_i16(bits_i16_##name(now) + x);                                            \
        } while (!__atomic_compare_exchange((int16_t *)p, &now, &next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)); \
        return bits_i16_##name(now);                                                                       \
    }
NARROW_ATOMICS(f16)
NARROW_ATOMICS(bf16)

static inline int16_t atomic_cas_i16(int16_t *p, int16_t is, int16_t to) {
    __atomic_compare_exchange_n(p, &is, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return is;
}
#define NARROW_CAS(name)                                                                                    \
    static inline float atomic_cas_##name(name##_t *p, float is, float to) {                               \
        return bits_i16_##name(atomic_cas_i16((int16_t *)p, bits_##name##_i16(is), bits_##name##_i16(to))); \
    }
NARROW_CAS(f16)
NARROW_CAS(bf16)
static inline float atomic_cas_f32(float *p, float is, float to) {
    return bits_i32_f32(atomic_cas_i32((int32_t *)p, bits_f32_i32(is), bits_f32_i32(to)));
}
static inline double atomic_cas_f64(double *p, double is, double to) {
    return bits_i64_f64(atomic_cas_i64((int64_t *)p, bits_f64_i64(is), bits_f64_i64(to)));
}

// Waits until a number is there. Without a time (-1 nanoseconds) it waits for ever.
#define POLL(name, T)                                                                                      \
    static inline _Bool atomic_poll_##name(T *p, T is, int64_t most) {                                     \
        struct timespec from, now;                                                                         \
        clock_gettime(CLOCK_MONOTONIC, &from);                                                             \
        for (;; sched_yield()) {                                                                           \
            if (__atomic_load_n(p, __ATOMIC_ACQUIRE) == is) return 1;                                      \
            clock_gettime(CLOCK_MONOTONIC, &now);                                                          \
            int64_t passed = (now.tv_sec - from.tv_sec) * INT64_C(1000000000) + now.tv_nsec - from.tv_nsec; \
            if (most >= 0 && passed >= most) return 0;                                                     \
        }                                                                                                  \
    }
POLL(i16, int16_t)
POLL(i32, int32_t)
POLL(i64, int64_t)

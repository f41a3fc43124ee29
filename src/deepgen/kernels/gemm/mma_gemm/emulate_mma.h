// The emulation's side of `dialect_mma.h`: a warp's lanes meet at every warp-wide instruction, in the same order, and
// loads of matrices count how often rows fall on the same banks.
#pragma once

namespace emulate {

constexpr int LANES = 32;

struct Meeting {  // of a warp's lanes; two places take turns, since a lane may be one meeting ahead of the others
    u32 words[2][LANES][8];
    u64 given = 0;
};

inline std::vector<Meeting> meetings;
inline std::vector<u64> attended;  // by thread
inline i64 conflicts = 0;          // rows of matrices that had to wait for another row's banks

// Gives this lane's words and returns those of all lanes.
inline const u32 (*meet(const u32* mine, int count))[8] {
    int me = machine.thread, warp = me / LANES, threads = (int)machine.fibers.size();
    if ((int)attended.size() < threads) {
        attended.resize(threads, 0);
        meetings.resize(threads / LANES);
    }
    u64 turn = attended[me]++;
    auto& words = meetings[warp].words[turn % 2];
    std::memcpy(words[me % LANES], mine, count * sizeof(u32));
    ++meetings[warp].given;
    for (int tries = 0; meetings[warp].given < (turn + 1) * LANES; ++tries) {
        if (tries > 1 << 16) fail("lanes of a warp part ways: some do not come to a warp-wide instruction");
        yield();
    }
    return meetings[warp].words[turn % 2];
}

inline void count_conflicts(const u32 (*from)[8]) {
    for (int i = 0; i < 4; ++i) {
        int seen = 0;
        for (int r = 0; r < 8; ++r) {
            u32 at = from[8 * i + r][0];
            if (at % 16 != 0) fail("a row of a matrix is not aligned");
            int bit = 1 << (at / 16 % 8);
            conflicts += (seen & bit) != 0;
            seen |= bit;
        }
    }
}

// The numbers that a word holds.
template <typename T> struct Decode;
template <> struct Decode<f16> {
    static f64 at(u32 w, int i) { return half_to_float({(u16)(w >> 16 * i)}); }
};
template <> struct Decode<bf16> {
    static f64 at(u32 w, int i) { return float_of_bits((w >> 16 * i & 0xFFFF) << 16); }
};
template <> struct Decode<tf32> {
    static f64 at(u32 w, int) { return float_of_bits(w & ~0x1FFFu); }  // the chip ignores the last 13 bits
};
template <> struct Decode<f32> {  // no product takes it: kernels that multiply plainly have the name all the same
    static f64 at(u32 w, int) { return float_of_bits(w); }
};
template <> struct Decode<i8> {
    static f64 at(u32 w, int i) { return (i8)(w >> 8 * i); }
};
template <> struct Decode<f8e5m2> {
    static f64 at(u32 w, int i) { return half_to_float({(u16)((w >> 8 * i & 0xFF) << 8)}); }
};
template <> struct Decode<f8e4m3> {
    static f64 at(u32 w, int i) {
        int bits = w >> 8 * i & 0xFF, exponent = bits >> 3 & 15, mantissa = bits & 7;
        if ((bits & 0x7F) == 0x7F) return NAN;
        f64 size = std::ldexp((f64)(exponent ? mantissa | 8 : mantissa), (exponent ? exponent : 1) - 10);
        return bits >> 7 ? -size : size;
    }
};

template <typename SUM>
inline void product(SUM (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    constexpr int EACH = 4 / sizeof(TYPE_A);
    u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const u32(*all)[8] = meet(mine, 6);
    int lane = machine.thread % LANES, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
        f64 sum = 0;
        for (int w = 0; w < 8; ++w)
            for (int e = 0; e < EACH; ++e)
                sum += Decode<TYPE_A>::at(all[g * 4 + w % 4][i / 2 + w / 4 * 2], e) *
                       Decode<TYPE_B>::at(all[(2 * t + i % 2) * 4 + w % 4][4 + w / 4], e);
        d[i] = (SUM)(d[i] + sum);
    }
}

}  // namespace emulate

DG_DEVICE void load_matrices(u32 (&to)[4], u32 from) {
    const u32(*rows)[8] = emulate::meet(&from, 1);
    int lane = thread_id() % 32;
    if (lane == 0) emulate::count_conflicts(rows);
    for (int i = 0; i < 4; ++i) to[i] = load_shared<u32>(rows[8 * i + lane / 4][0] + lane % 4 * 4);
}
DG_DEVICE void load_matrices_turned(u32 (&to)[4], u32 from) {
    const u32(*rows)[8] = emulate::meet(&from, 1);
    int lane = thread_id() % 32;
    if (lane == 0) emulate::count_conflicts(rows);
    for (int i = 0; i < 4; ++i) {
        u32 low = load_shared<u16>(rows[8 * i + lane % 4 * 2][0] + lane / 4 * 2);
        u32 high = load_shared<u16>(rows[8 * i + lane % 4 * 2 + 1][0] + lane / 4 * 2);
        to[i] = low | high << 16;
    }
}
DG_DEVICE void product(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { emulate::product(d, a, b); }
DG_DEVICE void product(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { emulate::product(d, a, b); }

template <int BYTES>
DG_DEVICE void copy_async_part(u32 to, const void* from, int real) {
    const char* first = static_cast<const char*>(from);
    if (real < 0 || real > BYTES) emulate::fail("a copy reads more than it has room for");
    if (reinterpret_cast<u64>(from) % BYTES != 0) emulate::fail("unaligned copy from global memory");
    if (real > 0) {
        emulate::find_range(first, 1);
        emulate::find_range(first + real - 1, 1);
    }
    emulate::note_write(to, BYTES, true);
    emulate::Fiber& f = emulate::machine.fibers[emulate::machine.thread];
    f.copies.push_back({to, from, real, true, f.groups});
    f.copies.push_back({to + real, from, BYTES - real, false, f.groups});
}

struct Streaming {
    Vec<u32, 4> load(const void* from) const { return load_global<Vec<u32, 4>>(from); }
};

DG_DEVICE u32 pick_bytes(u32 a, u32 b, u32 order) {
    u64 both = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) out |= (u32)(both >> 8 * (order >> 4 * i & 7) & 0xFF) << 8 * i;
    return out;
}
DG_DEVICE f32 from_lane_across(f32 x, int mask) {
    u32 bits = bits_of_float(x);
    return float_of_bits(emulate::meet(&bits, 1)[thread_id() % 32 ^ mask][0]);
}
DG_DEVICE f32 exponential(f32 x) { return std::exp(x); }
DG_DEVICE void narrow_two(f32 a, f32 b, Vec<f16, 2>& out) { out = {{float_to_half(a), float_to_half(b)}}; }
DG_DEVICE void narrow_two(f32 a, f32 b, Vec<bf16, 2>& out) {
    for (int i = 0; i < 2; ++i) {
        u32 bits = bits_of_float(i ? b : a);
        out.v[i].bits = (u16)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
    }
}
DG_DEVICE void block_ends() { barrier(); }

// The emulation's side of what lanes of a warp do together: they meet, each leaves its words, and all read them.
#pragma once

namespace emulate {

struct Exchange {
    u32 words[2][64][8];  // two meetings take turns: a lane may be one ahead of the others
    u64 arrived = 0;
};

inline std::vector<Exchange> exchanges;  // of each warp
inline std::vector<u64> visits;          // of each thread

inline const u32 (*exchange(const u32* mine, int count))[8] {
    const int threads = (int)machine.fibers.size(), me = machine.thread, warp = me / WARP;
    if ((int)visits.size() != threads) {
        visits.assign(threads, 0);
        exchanges.assign((threads + WARP - 1) / WARP, Exchange{});
    }
    const int lanes = threads - warp * WARP < WARP ? threads - warp * WARP : WARP;
    const u64 turn = visits[me]++;
    Exchange& here = exchanges[warp];
    std::memcpy(here.words[turn % 2][me % WARP], mine, count * sizeof(u32));
    ++here.arrived;
    for (int tries = 0; here.arrived < (turn + 1) * lanes; ++tries) {
        if (tries > 1 << 16) fail("some lanes of a warp do not come to what they do together");
        yield();
    }
    return here.words[turn % 2];
}

}  // namespace emulate

DG_DEVICE u32 across(u32 word, int mask) {
    return emulate::exchange(&word, 1)[(thread_id() % WARP) ^ mask][0];
}

// Enough of CUDA to run a kernel on the CPU: a block's threads are fibers, and barriers are real.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <vector>

#define __global__
#define __device__
#define __constant__ static
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __ldg(pointer) (*(pointer))
using std::max;
using std::min;

struct Place {
    int x, y, z;
};
inline Place threadIdx, blockIdx;

namespace fibers {

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    Place thread;
    bool done = false;
};

inline std::vector<Fiber> all;
inline ucontext_t scheduler;
inline int current = 0;
inline void (*body)() = nullptr;

inline void leave() { swapcontext(&all[current].context, &scheduler); }

inline void run() {
    body();
    all[current].done = true;
    leave();
}

// Each thread in turn runs up to its next barrier.
inline void run_block(Place block) {
    for (int y = 0, i = 0; y < block.y; y++)
        for (int x = 0; x < block.x; x++, i++) {
            Fiber& fiber = all[i];
            fiber.thread = {x, y, 0};
            fiber.done = false;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, run, 0);
        }
    for (bool left = true; left;) {
        left = false;
        for (current = 0; current < block.x * block.y; current++) {
            if (all[current].done) continue;
            threadIdx = all[current].thread;
            swapcontext(&scheduler, &all[current].context);
            left = left || !all[current].done;
        }
    }
}

inline void launch(void (*kernel)(), Place grid, Place block) {
    body = kernel;
    all.resize(block.x * block.y);
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(block);
}

}  // namespace fibers

inline void __syncthreads() {
    const Place own = threadIdx;
    fibers::leave();
    threadIdx = own;
}

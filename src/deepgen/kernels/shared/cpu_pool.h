// The pool of threads on any processor. What it waits with has another name elsewhere than on x86.
#if defined(__aarch64__)
#define __builtin_ia32_pause() __asm__ volatile("yield")
#elif !defined(__x86_64__)
#define __builtin_ia32_pause() ((void)0)
#endif
#include "x86_pool.h"

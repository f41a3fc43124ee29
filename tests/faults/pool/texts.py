"""The source of a fault: a correct but slow kernel, replaced by the faulty one if FAULT is set."""

from __future__ import annotations

from typing import Any

import deepgen as dg
from pool.fault import Fault

BLOCK, MOST_BLOCKS = 128, 1024

_C = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#define ENTRY void
#define EACH(i, n) for (int i = 0; i < (n); i++)
#define BARRIER __asm__ volatile("" : : : "memory")
static long calls;
#define COUNT calls++
"""
_CUDA = """
#ifdef __CUDACC__
#define ENTRY extern "C" __global__ void
#define EACH(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)
#define BARRIER __threadfence()
#define PAUSE for (int wait = 0; wait < 200; wait++) __threadfence()
#endif
#define COUNT
"""


def text_of(fault: Fault) -> str:
    """One file: both kernels under one name, selected by the macro FAULT."""
    subject = fault.subject
    return f"""/* {fault.name} */
{_C if fault.language == "c" else _CUDA}
{fault.before}
ENTRY {subject.name}({subject.parameters}) {{
    COUNT;
#if FAULT
    {fault.faulty or subject.right}
#else
    for (int pass = 0; pass < {subject.passes}; pass++) {{
        {subject.right}
        BARRIER;
    }}
#endif
}}
"""


def described(fault: Fault) -> Any:
    """The argument of `dg.tune`: the kernel with a knob FAULT, correct where it is 0."""
    if fault.makes is not None:
        return fault.makes()
    subject = fault.subject
    wide = {"grid": [f"min({MOST_BLOCKS}, ceil_div({subject.cells}, {BLOCK}))"], "block": [BLOCK]}
    return dg.kernel(
        text_of(fault),
        language=fault.language,
        entry=subject.name,
        arguments=subject.arguments,
        sizes=subject.sizes,
        knobs={"FAULT": [0, 1] if fault.has_rival else [1]},
        reference=subject.reference,
        flags=fault.flags,
        requires=fault.requires,
        **(wide if fault.language == "cuda" else {}),
    )

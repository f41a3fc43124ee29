"""Faults that do not get what is due to them yet, one a line. Whoever mends one takes its line out.

A name alone is the kernel in C or the expression; one in another language has that behind it.
"""

from __future__ import annotations

AWAITED: tuple[str, ...] = (
    # Other shapes and strides
    "wrong where n is odd",
    # Scalars
    "the factor is a constant",
    "right for whole factors only",
    "the sign of zero",
    "a size beyond 32 bits",
    # Kept results
    "results kept by sixteen samples",
    # Threads
    "static scratch memory",
    "one wrong element in a thousand calls",
    "slow after three hundred calls",
    # The process
    "a descriptor more with each call",
    "a thread more with each call",
    "256 KiB more with each call",
    "another locale",
    "another process name",
    "locked memory",
    "an exit handler",
    # Kernels that watch the judge
    "watches the protection of inputs",
    # In other languages
    "wrong where n is odd (cuda)",
    "the factor is a constant (cuda)",
    "the factor is a constant (triton)",
)

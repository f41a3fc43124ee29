"""Faults that do not get what is due to them yet, one a line. Whoever mends one takes its line out.

A name alone is the kernel in C or the expression; one in another language has that behind it.
"""

from __future__ import annotations

AWAITED: tuple[str, ...] = (
    # Kernels that watch the judge
    "watches the protection of inputs",
)

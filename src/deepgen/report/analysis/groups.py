"""What a number is about, by its name: the group it belongs to, and what a person calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping

TIME, OTHER = "time", "other"
# The first group one of whose patterns occurs in a name. `time` holds what follows the time by definition.
_GROUPS: Mapping[str, str] = {
    TIME: r"^(?!.*(stall|active)).*(?<![a-z])(cycles?|clock|duration|elapsed|seconds)(?![a-z])",
    "cache": r"cache|l1|l2|llc|lts__|tlb|tex__",
    "vector": r"vector|vfpu|simd|fma|tensor|mma|pipe_|neon|sve|avx|flop|matrix",
    "memory": r"dram|mem|(?<!code_)bytes|load|store|spill|stack|shared|sector|page|bandwidth|global|local",
    "control": r"branch|barrier|sync|stall|switch|inst|predicate|warp|occupancy|issue|jump|divergen|code",
}
_PATTERNS = {group: re.compile(pattern, re.IGNORECASE) for group, pattern in _GROUPS.items()}
# Names that are worth words of their own, as events or as facts.
_WORDS: Mapping[str, str] = {
    "cache-misses": "cache misses",
    "cache-references": "cache references",
    "L1-dcache-loads": "L1 loads",
    "L1-dcache-load-misses": "L1 load misses",
    "LLC-loads": "last-level cache loads",
    "LLC-load-misses": "last-level cache misses",
    "dTLB-load-misses": "TLB misses",
    "branch-misses": "branch misses",
    "l1d_miss": "L1 misses",
    "l1d_access": "L1 accesses",
    "l2_miss": "L2 misses",
    "l2_access": "L2 accesses",
    "vector_inst": "vector instructions",
    "dram__bytes_read.sum": "bytes read from DRAM",
    "dram__bytes_write.sum": "bytes written to DRAM",
    "smsp__inst_executed.sum": "instructions executed",
    "registers": "registers",
    "spill_bytes": "spilled bytes",
    "shared_bytes": "shared memory",
    "stack_bytes": "stack bytes",
    "code_bytes": "code size",
    "occupancy": "occupancy",
}


def group_of(name: str) -> str:
    """The group of a column such as `event.l2_miss`; a knob and a value derived from knobs are groups of their own."""
    kind, _, plain = name.partition(".")
    if kind in ("knob", "derived"):
        return kind
    return next((group for group, pattern in _PATTERNS.items() if pattern.search(plain)), OTHER)


def words_for(name: str) -> str:
    """What a person calls a column."""
    plain = name.partition(".")[2]
    return _WORDS.get(plain, plain)

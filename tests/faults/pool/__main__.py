"""Runs the pool and says who got what was due.

python tests/faults/pool                        # on this machine's processor
python tests/faults/pool --target cuda:native   # on its GPU, through torch's tensors
python tests/faults/pool --only "16 bytes"      # those with such a name
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pool import FAULTS
from pool.runner import place_of, tried


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--target", default="cpu")
    words.add_argument("--only", default="", help="a part of the names")
    words.add_argument("--verbose", action="store_true", help="what was said of each")
    options = words.parse_args()
    place = place_of(options.target)
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, fault in enumerate(FAULTS):
            if fault.language not in place.languages or options.only not in fault.name:
                continue
            started = time.monotonic()
            outcome = tried(fault, place, Path(folder) / str(number), Path(folder) / "cache")
            mark = "ok " if outcome.due(fault) else "BAD"
            count[mark] += 1
            served = f", served {outcome.served}" if outcome.served else ""
            took = f"{time.monotonic() - started:.1f} s"
            detail = "" if outcome.due(fault) and not options.verbose else f"  {outcome.detail}{outcome.rival}"
            print(
                f"{mark}  {fault.language:6}  {fault.name:44}  {outcome.fate}{served}  {took}{detail[:300]}", flush=True
            )
    print(f"{sum(count.values())} kernels on {place.target}, {count['BAD']} without what is due")
    return int(count["BAD"] > 0)


if __name__ == "__main__":
    sys.exit(main())

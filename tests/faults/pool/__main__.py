"""Runs the pool and reports unexpected outcomes.

python tests/faults/pool                        # on this machine's CPU
python tests/faults/pool --target cuda:native   # on its GPU, through torch tensors
python tests/faults/pool --only "16 bytes"      # those with such a name
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent / "run/measure")]

import deepgen as dg  # noqa: E402
from pool import FAULTS, Fault  # noqa: E402
from pool.first_round import first_round  # noqa: E402
from pool.runner import Place, place_of, tried, used  # noqa: E402
from pool.texts import described  # noqa: E402


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--target", default="cpu")
    words.add_argument("--only", default="", help="a part of the names")
    words.add_argument("--part", default="0/1", help="of the faults, such as 2/4: the third of four parts")
    words.add_argument("--all", action="store_true", help="also the faults that other tests have")
    words.add_argument("--verbose", action="store_true", help="what was said of each")
    words.add_argument("--use", nargs=2, metavar=("NAME", "STUDY"), help="only call the winner of a study")
    options = words.parse_args()
    if options.use:
        place, name = place_of(options.target), options.use[0]
        fault = next(one for one in FAULTS if one.full_name == name)
        assert fault.uses is not None
        print(used(dg.Study.open(Path(options.use[1]), operator=described(fault).operator()), fault.uses, place))
        return 0
    with ExitStack() as stack:
        if options.target == "emulated":
            from pool.emulated import emulated  # needs pytest

            place = stack.enter_context(emulated(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        else:
            place = place_of(options.target)
        faults = [fault for fault in (*FAULTS, *(first_round() if options.all else ())) if options.only in fault.name]
        part, parts = map(int, options.part.split("/"))
        able = [fault for fault in faults if fault.language in place.languages]
        return run(place, able[part::parts], verbose=options.verbose)


def run(place: Place, faults: Sequence[Fault], *, verbose: bool) -> int:
    """Try these faults; returns 1 if any outcome is unexpected."""
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, fault in enumerate(faults):
            started = time.monotonic()
            outcome = tried(fault, place, Path(folder) / str(number), Path(folder) / "cache")
            mark = "ok " if outcome.due(fault) else "BAD"
            count[mark] += 1
            served = f", served {outcome.served}" if outcome.served else ""
            took = f"{time.monotonic() - started:.1f} s"
            detail = "" if outcome.due(fault) and not verbose else f"  {outcome.detail}{outcome.rival}"
            print(
                f"{mark}  {fault.language:6}  {fault.name:44}  {outcome.fate}{served}  {took}{detail[:300]}", flush=True
            )
    print(f"{sum(count.values())} kernels on {place.target}, {count['BAD']} without what is due")
    return int(count["BAD"] > 0)


if __name__ == "__main__":
    sys.exit(main())

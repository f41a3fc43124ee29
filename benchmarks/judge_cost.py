"""What share of a study's time do checks take, beyond those on usual and extreme inputs? Counts py-spy's samples.

    py-spy record -s -f raw -r 50 -o FILE -- deepgen tune softmax rows=4096 cols=1024 --baseline numpy
    python benchmarks/judge_cost.py FILE

Of the process that measures, which studies wait for. Usual and extreme inputs are still counted in finals.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from harness import table

CHECKS = {
    "Referee._also": "arrays one element off, or each aligned in another way",
    "Referee._many_calls": "many calls of the winner",
    "Referee._several_threads": "calls from several threads",
    "Referee.verify ": "other inputs and shapes",
}
if __name__ == "__main__":
    counts, total = Counter[str](), 0
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        frames, _, samples = line.rpartition(" ")
        if "serve (deepgen/run/measure/worker.py" in frames and "Thread._bootstrap" not in frames:
            total += int(samples)
            counts[next((what for frame, what in CHECKS.items() if frame in frames), "")] += int(samples)
    del counts[""]
    print(table(("check", "share"), [(what, f"{number / total:.1%}") for what, number in counts.most_common()]))
    print(f"all: {counts.total() / total:.1%} of {total} samples")

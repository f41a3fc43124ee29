"""A schedule rule of your own: what reads a tensor across its rows, as a transposition does, by tiles in shared memory.

deepgen's own rules let each thread read what it stores: neighbours of a result then lie a whole row apart in memory.
This rule has a block read a square tile along the rows of the tensor, and store it along those of the result.

Run it to tune a transposition on this machine's GPU, with the rule and without; where there is none, it shows what the
rule offers:

    python examples/own_rule.py [cuda:native]

An installed package offers the rule to every study by an entry point, and needs no line of its user's:

    [project.entry-points."deepgen.schedule_rules"]
    transpose-tiles = "own_rule:TransposeTiles"
"""

from __future__ import annotations

import sys

import deepgen as dg
from deepgen.extend import Gpu, Missing, Plan, Read, Rules, Stage, dtype, plain, reads, steps, targets
from deepgen.operators.expr.operator import as_operator

BANKS = 4  # bytes of a bank of shared memory


class TransposeTiles:
    """Of a stage that reads one tensor along another axis than it stores."""

    name, exclusive, targets = "Transpose-Tiles", False, (Gpu,)

    def declines(self, draft: Plan, stage: Stage) -> str | None:
        if stage.reduce is not None or draft.part.sums:
            return "it reduces what it reads"
        return None if self._crossed(draft, stage) else "it reads no tensor along another axis than it stores"

    def _crossed(self, draft: Plan, stage: Stage) -> Read | None:
        """What it reads so: a tensor, at places that are the stage's axes in another order."""
        tensors, own = {one.name for one in draft.expression.tensors}, [axis.name for axis in stage.axes]
        for read in reads(stage.value):
            places = [plain(index) or "" for index in read.indices]
            if read.tensor in tensors and sorted(places) == sorted(own) and places[-1:] != own[-1:]:
                return read
        return None

    def apply(self, draft: Plan, stage: Stage) -> list[Plan]:
        read = self._crossed(draft, stage)
        assert read is not None
        way, tile, size = draft.branch("transposed"), f"{read.tensor}.tile", dtype(read.dtype).bytes
        places = [plain(index) for index in read.indices]
        rows, columns = str(places[-1]), stage.axes[-1].name  # what runs along rows of the tensor, and of the result
        side = way.knob("side", (16, 32, 64), 32)
        threads = way.knob("threads", (128, 256, 512), 256)
        run = way.knob("run", (1, 2, 4), 1)
        way.require(side * side * size * 2 <= draft.target.shared_per_block, "a tile fits in shared memory")

        # What is stored: a block has a square of the two axes, and its threads take neighbours along the rows of it.
        way.cache_read(read.tensor, tile, (stage.name,), "shared")
        split = {name: way.split(stage.name, name, (side,)) for name in (rows, columns)}
        others = [axis.name for axis in stage.axes if axis.name not in split]
        blocks, inside = [*others, split[rows][0], split[columns][0]], [split[rows][1], split[columns][1]]
        way.reorder(stage.name, [*blocks, *inside])
        block = way.fuse(stage.name, blocks)
        way.annotate(stage.name, "block.x", block)
        way.deal(stage.name, inside, ("thread.x", threads), ("vector", run))

        # What is copied: the same square, along the rows of the tensor. They lie an odd number of words apart, so that
        # threads that read across them meet different banks.
        way.compute_at(tile, stage.name, block)
        way.deal(tile, [axis.name for axis in way.stage(tile).axes], ("thread.x", threads), ("vector", run))
        words = max(1, BANKS // size)
        way.step(steps.StorageAlign(tile, places.index(columns), 2 * words, words))
        way.finish(stage.name)
        return [way]


def transposition(rows: int, columns: int) -> object:
    x = dg.tensor("x", (columns, rows))
    return dg.compute("y", (rows, columns), lambda i, j: x[j, i])


def race(target: str) -> None:
    operator = transposition(4096, 8192)
    seconds = {}
    for name, rules in (("without", []), ("with", [TransposeTiles()])):
        study = dg.tune(operator, target=target, rules=rules, family="rules", trials=30, baselines=False)
        seconds[name] = study.best().seconds
        print(f"{name} the rule: {seconds[name] * 1e6:.1f} us, {study.best().trial.config}")
    print(f"ratio: {seconds['without'] / seconds['with']:.2f}")


def offer(target: str) -> None:
    """The loops that the rule makes, of which a kernel can be built anywhere."""
    operator, family = as_operator(transposition(4096, 8192)), Rules([TransposeTiles()])
    device = targets.resolve(target)
    print(family.schedule_text(operator, device, family.default(operator, device)))


if __name__ == "__main__":
    try:
        race(sys.argv[1] if len(sys.argv) > 1 else "cuda:native")
    except Missing as missing:
        print(missing)
        offer("cuda:sm_90a")

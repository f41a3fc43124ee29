"""A schedule rule of your own: images with channels last, as planes, through shared memory.

Where one axis of a transposition has a few elements, as the colours of an image, a thread that reads what it stores
reads every line once for each colour. This rule has a block read a run of pixels as it lies, and store it plane by
plane.

Run it to tune that on this machine's GPU, with the rule and without; where there is none, it shows what the rule does:

    python examples/own_rule.py [cuda:native]

An installed package offers the rule to every study by an entry point, and needs no line of its user's:

    [project.entry-points."deepgen.schedule_rules"]
    planes = "own_rule:Planes"
"""

from __future__ import annotations

import sys

import deepgen as dg
from deepgen.extend import Gpu, Missing, Plan, Read, Rules, Stage, dtype, plain, reads, targets
from deepgen.operators.expr.operator import as_operator

FEW = 32  # channels


class Planes:
    """For a stage that reads one tensor with a short last axis, while its own last axis is another one."""

    name, exclusive, targets = "Planes", False, (Gpu,)

    def declines(self, draft: Plan, stage: Stage) -> str | None:
        if stage.reduce is not None or draft.part.sums:
            return "it reduces what it reads"
        return None if self._interleaved(draft, stage) else "it reads no tensor with few channels last"

    def _interleaved(self, draft: Plan, stage: Stage) -> Read | None:
        """The interleaved read: a tensor indexed by the stage's axes in another order."""
        tensors, extents = {one.name for one in draft.expression.tensors}, {a.name: a.extent for a in stage.axes}
        for read in reads(stage.value):
            places = [plain(index) or "" for index in read.indices]
            if read.tensor in tensors and sorted(places) == sorted(extents) and 1 < extents[places[-1]] < FEW:
                return read if places[-1] != stage.axes[-1].name else None
        return None

    def apply(self, draft: Plan, stage: Stage) -> list[Plan]:
        read = self._interleaved(draft, stage)
        assert read is not None
        way, run, size = draft.branch("planes"), f"{read.tensor}.run", dtype(read.dtype).bytes
        channels, pixels = str(plain(read.indices[-1])), stage.axes[-1].name
        count = next(axis.extent for axis in stage.axes if axis.name == channels)
        side = way.knob("side", (64, 128, 256, 512), 256)
        threads = way.knob("threads", (64, 128, 256), 128)
        width = way.knob("width", (1, 2, 4), 1)
        way.require(side * count * size * 2 <= draft.target.shared_per_block, "a run fits in shared memory")

        # The stored result: a block has a run of pixels in all planes, and its threads take adjacent pixels of a plane.
        way.cache_read(read.tensor, run, (stage.name,), "shared")
        outer, own = way.split(stage.name, pixels, (side,))
        blocks = [*(axis.name for axis in stage.axes if axis.name not in (channels, pixels)), outer]
        way.reorder(stage.name, [*blocks, channels, own])
        block = way.fuse(stage.name, blocks)
        way.annotate(stage.name, "block.x", block)
        way.deal(stage.name, [channels, own], ("thread.x", threads), ("vector", width))

        # The copy: the same pixels, in memory order.
        way.compute_at(run, stage.name, block)
        way.deal(run, [axis.name for axis in way.stage(run).axes], ("thread.x", threads), ("vector", width))
        way.finish(stage.name)
        return [way]


def planes(images: int, height: int, width: int, channels: int, of: str = "f32") -> object:
    x = dg.tensor("x", (images, height, width, channels), of)
    return dg.compute("y", (images, channels, height, width), lambda n, c, h, w: x[n, h, w, c])


def race(target: str) -> None:
    operator = planes(32, 512, 512, 3)
    seconds = {}
    for name, rules in (("without", []), ("with", [Planes()])):
        study = dg.tune(operator, target=target, rules=rules, family="rules", trials=30, baselines=False)
        seconds[name] = study.best().seconds
        print(f"{name} the rule: {seconds[name] * 1e6:.1f} us, {study.best().trial.config}")
    print(f"ratio: {seconds['without'] / seconds['with']:.2f}")


def offer(target: str) -> None:
    """Print the loops that the rule generates; a kernel for them can be built on any machine."""
    operator, family = as_operator(planes(32, 512, 512, 3)), Rules([Planes()])
    device = targets.resolve(target)
    print(family.schedule_text(operator, device, family.default(operator, device)))


if __name__ == "__main__":
    try:
        race(sys.argv[1] if len(sys.argv) > 1 else "cuda:native")
    except Missing as missing:
        print(missing)
        offer("cuda:sm_90a")

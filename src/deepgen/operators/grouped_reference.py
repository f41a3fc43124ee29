"""What grouped GEMMs are verified with: how rows are divided among experts, inputs of each kind, and exact results."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators import gemm_inputs, references
from deepgen.operators.base import Answer, Array
from deepgen.operators.compare import scale_format
from deepgen.operators.grouped_gemm import PROBES
from deepgen.operators.products import cancelling, signs
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Kernel, LaunchPlan, ScalarArg, TensorArg

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm
    from deepgen.operators.grouped_gemm import GroupedGemm

_SKEWED = 4  # the power of drawn shares where few experts have most rows


def ends(experts: int, rows: int, seed: int, probe: str = "normal") -> list[int]:
    """The offsets: where each expert's rows end.

    `normal`: no expert has more than three times what another has. `large`: every other one is empty. `denormal`: the
    first and the last are empty. `zeros`: one has all rows. `special`: few have most. `exact`: anything. The first
    offset does not depend on the seed: inputs that alternate agree in their first and last elements.
    """
    chance = Random(f"{seed} {experts} {probe}")
    shares = [0.5 + chance.random() for _ in range(experts)]
    if probe == "large":
        shares = [share * (place % 2) for place, share in enumerate(shares)]
    elif probe == "denormal":
        shares = [share * (0 < place < experts - 1) for place, share in enumerate(shares)]
    elif probe == "zeros":
        shares = [float(place == experts // 2) for place in range(experts)]
    elif probe in ("special", "exact"):
        shares = [chance.random() ** (_SKEWED if probe == "special" else 1) for _ in range(experts)]
    if experts == 1 or not any(shares):
        return [rows * (place == experts - 1) for place in range(experts)]
    first = shares[0] and 0.5 + Random(f"{experts} {probe}").random()
    own = [int(rows * first / (first + experts - 1))]
    total, so_far = sum(shares[1:]), 0.0
    for share in shares[1:-1]:
        so_far += share
        own.append(own[0] + int((rows - own[0]) * so_far / total) if total else own[0])
    return [*own, rows]


def inputs(operator: GroupedGemm, seed: int, probe: str) -> dict[str, Array]:
    """Those of a product as wide as all experts together, divided among them."""
    if probe not in PROBES:
        raise BadInput(f"grouped_gemm: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
    offsets = np.array(ends(operator.experts, operator.rows, seed, probe), np.int32)
    if operator.gradient:
        drawn = _exact_gradient(operator, offsets, seed) if probe == "exact" else _drawn(operator, 1, seed, probe)
    else:
        drawn = _drawn(operator, operator.experts, seed, probe)
        drawn["B"] = drawn["B"].reshape(operator.experts, operator.n, operator.k)
        if operator.layout == "nn":
            drawn["B"] = np.swapaxes(drawn["B"], 1, 2)
    shapes = {tensor.name: tensor.shape for tensor in operator.tensors()}
    if operator.scales != "none":
        drawn["scale"] = np.resize(drawn["scale"], shapes["scale"]).astype(np.float32)
    drawn["offsets"] = offsets
    return {name: np.ascontiguousarray(drawn[name]) for name in shapes if name != "C"}


def _drawn(operator: GroupedGemm, experts: int, seed: int, probe: str) -> dict[str, Array]:
    wide: Gemm = operator.product(operator.m, operator.k)
    scales = {"expert": "column"}.get(operator.scales, operator.scales)  # one for each
    layout = "tn" if operator.gradient else "nt"
    wide = type(wide)(
        wide.m, wide.n * experts, wide.k, 1, wide.a, wide.b, wide.c, wide.acc, layout,
        scales=scales, fast_sums=wide.fast_sums,
    )  # fmt: skip
    return gemm_inputs.inputs(wide, seed, probe)


def _exact_gradient(operator: GroupedGemm, offsets: Array, seed: int) -> dict[str, Array]:
    """As in `gemm_inputs`, products are 1 and -1, and each expert's cancel each other until few are left."""
    rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
    a, b, c, acc = operator.product(1, 1).dtypes
    most = int(1.0 / (4.0 * max(c.epsilon, acc.epsilon)))
    left = rng.integers(2, size=(operator.k, operator.m), dtype=bool)  # whether a number is -1
    right = rng.integers(2, size=(operator.k, operator.n), dtype=bool)
    for _, own in groups(offsets):
        pairs = cancelling(rng, own.stop - own.start, most)
        first, second = pairs.first + own.start, pairs.second + own.start
        left[second], right[second] = left[first], ~right[first]
    return {"A": signs(left, a), "B": signs(right, b), "scale": np.ones(1, np.float32)}


def groups(offsets: Array) -> Iterator[tuple[int, slice]]:
    """Experts that have rows, with these."""
    begin = 0
    for expert, end in enumerate(map(int, offsets)):
        if end > begin:
            yield expert, slice(begin, end)
        begin = end


def reference(operator: GroupedGemm, tensors: Mapping[str, Array]) -> dict[str, Answer]:
    _check(operator, tensors["offsets"])
    shape = operator.tensors()[-1].shape
    of = operator.product(1, 1).dtypes[2]
    values, scale = np.zeros(shape), np.zeros(shape, scale_format(of).numpy())
    for expert, rows in groups(tensors["offsets"]):
        product, own = _of_expert(operator, tensors, expert, rows)
        answer = references.gemm_reference(product, own)["C"]
        at = expert if operator.gradient else rows
        values[at], scale[at] = answer.values, answer.scale * (product.k / operator.k)
    return {"C": Answer(values, scale)}


def reference_at(operator: GroupedGemm, tensors: Mapping[str, Array], output: str, places: Array) -> Answer:
    _check(operator, tensors["offsets"])
    *outer, row, column = np.unravel_index(places, operator.tensors()[-1].shape)
    which = outer[0] if operator.gradient else np.searchsorted(tensors["offsets"], row, side="right")
    values, scale = np.zeros(len(places)), np.zeros(len(places))
    for expert, rows in groups(tensors["offsets"]):
        at = np.flatnonzero(which == expert)
        if at.size:
            product, own = _of_expert(operator, tensors, expert, rows)
            inside = row[at] - (0 if operator.gradient else rows.start)
            answer = references.reference_at(product, own, inside * operator.n + column[at])
            values[at], scale[at] = answer.values, answer.scale * (product.k / operator.k)
    return Answer(values, scale)


def reference_kernel(operator: GroupedGemm, language: str) -> Kernel | None:
    """That of one product, whose blocks find their experts."""
    whole = references.reference_kernel(operator.product(operator.m, operator.k), language)
    if whole is None:
        return None
    (step,) = whole.plan.steps
    args = (*step.args[:-2], TensorArg("offsets"), ScalarArg("i32", "E"))
    rows = "ceil_div(M, 64) * E" if operator.gradient else "(M + 63 * E) // 64"
    step = replace(step, args=args, grid=(f"{rows} * ceil_div(N, 64)", 1, 1))
    flags = (*whole.flags, f"-DGROUPED={1 + operator.gradient}")
    return replace(whole, name="grouped_reference", flags=flags, plan=LaunchPlan((step,)))


def _of_expert(
    operator: GroupedGemm, tensors: Mapping[str, Array], expert: int, rows: slice
) -> tuple[Gemm, dict[str, Array]]:
    """An expert's product and what it reads."""
    count, own = rows.stop - rows.start, {"A": tensors["A"][rows]}
    own["B"] = tensors["B"][rows] if operator.gradient else tensors["B"][expert]
    if operator.scales != "none":
        at = {"expert": slice(expert, expert + 1), "row": rows}.get(operator.scales, expert)
        own["scale"] = tensors["scale"][at]
    sizes = (operator.m, count) if operator.gradient else (count, operator.k)
    return operator.product(*sizes), own


def _check(operator: GroupedGemm, offsets: Array) -> None:
    """Raises BadInput where rows would belong to no expert or to several."""
    size = "K" if operator.gradient else "M"
    steps = np.diff(offsets, prepend=0)
    if steps.min() < 0:
        expert = int(np.argmin(steps >= 0))
        raise BadInput(f"grouped_gemm: offsets[{expert}] is {offsets[expert]}", allowed="at least the one before")
    if offsets[-1] != operator.rows:
        what = f"grouped_gemm: the last offset is {offsets[-1]}"
        raise BadInput(what, allowed=f"{operator.rows}, the number of rows ({size})")

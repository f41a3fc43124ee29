"""Products with weights of 4 bits: y = x * W^T, where W[n, k] = (q[n, k] - zero[n, k / G]) * scale[n, k / G].

As users have them, the weights are N x K / 2 bytes, the lower half of a byte being the even k, and scales and zero
points N x groups. Kernels for matrix units want them packed (`weight_layout="packed"`), which `pack_w4` does once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil, prod
from typing import Any, ClassVar

from deepgen.operators import filling
from deepgen.operators.base import REFERENCE_ROWS, Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.gemm import gemm
from deepgen.operators.products import TINY, cancelling, signs
from deepgen.operators.signature import ROWS, Param, Signature, Size
from deepgen.operators.words import NONE, Word, plain
from deepgen.vocabulary.dtypes import DType, dtype, narrow, our_name, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Kernel

FORMATS = ("bf16", "f16")
PACKED = "packed"
LAYOUTS = (NONE, PACKED)
MIDDLE = 8  # the zero point of weights that have none of their own
PACKED_N, PACKED_K = 16, 64  # of a block of packed weights: 32 lanes with 16 bytes each
_LEAST_GROUP = 32
_WORDS = {"M": "m", "N": "n", "K": "k", "G": "group"}
_PROBES = ("normal", "large", "denormal", "zeros", "special", "exact", "minimum", "maximum")
_LARGE = {"f16": 8.0}
_ENDS = {"minimum": (0, 15), "maximum": (255, 0)}  # all weights, and all zero points
_FIRST, _SPREAD = 2.0**-5, 2.0**-4  # scales: from the first, by up to so much
_ROWS = 1 << 21  # weights that are widened at once


@dataclass(frozen=True)
class GemmW4(Operator):
    """A product of x with weights of 4 bits; its parameters are its fields."""

    name: ClassVar[str] = "gemm_w4"
    general_last: ClassVar[bool] = True
    weights: ClassVar[tuple[str, ...]] = ("w", "scales", "zeros")
    reference_rows: ClassVar[int | None] = REFERENCE_ROWS
    words: ClassVar[tuple[Word, ...]] = (
        Word("M", "rows of x and y", needed=True),
        Word("N", "rows of the weights, columns of y", needed=True),
        Word("K", "columns of x and of the weights; even", needed=True),
        Word("G", "weights of a row that share a scale: a power of two from 32 on; 0: all", default=128, least=0),
        Word("dtype", "data type of x, scales and y", "choice", "bf16", choices=FORMATS),
        Word("zeros", "each group has a zero point; otherwise all are 8", "flag", False),
        Word("weight_layout", "packed: in the order of dg.pack_w4", "choice", NONE, choices=LAYOUTS),
    )

    m: int
    n: int
    k: int
    group: int = 128
    dtype: str = "bf16"
    zeros: bool = False
    weight_layout: str = NONE

    def __post_init__(self) -> None:
        for word in self.words:
            value = getattr(self, _WORDS.get(word.name, word.name))
            try:
                object.__setattr__(self, _WORDS.get(word.name, word.name), word.check(value))
            except BadInput as error:
                raise BadInput(f"gemm_w4: {error.what}", allowed=error.allowed) from error
        if self.k % 2:
            raise BadInput(f"gemm_w4: K is {self.k}", allowed="an even number: a byte holds two weights of a row")
        if self.group and (self.group < _LEAST_GROUP or self.group & (self.group - 1)):
            allowed = f"a power of two of at least {_LEAST_GROUP}, or 0: a row has one scale"
            raise BadInput(f"gemm_w4: G is {self.group}", allowed=allowed)

    @property
    def packed(self) -> bool:
        return self.weight_layout == PACKED

    @property
    def format(self) -> DType:
        return dtype(self.dtype)

    @property
    def groups(self) -> int:
        """Of a row."""
        return ceil(self.k / self.group) if self.group else 1

    def describe(self) -> str:
        return " ".join(["gemm_w4", self.dtype, f"{self.m}x{self.n}x{self.k}", *self._extras("groups of ")])

    def slug(self) -> str:
        return "-".join(["gemm_w4", self.dtype, f"{self.m}x{self.n}x{self.k}", *self._extras("g")])

    def _extras(self, of: str) -> list[str]:
        words = [f"{of}{self.group}"] if self.group else []
        return [*words, *(["zeros"] if self.zeros else []), *([PACKED] if self.packed else [])]

    def signature(self) -> Signature:
        groups: Size = f"ceil_div(K, {self.group})" if self.group else 1
        of_groups: tuple[Size, ...] = (groups, "N") if self.packed else ("N", groups)
        blocks: tuple[Size, ...] = (f"ceil_div(N, {PACKED_N})", f"ceil_div(K, {PACKED_K})", 32, 16)
        params = [
            Param("x", "input", self.dtype, ("M", "K"), strides=ROWS),
            Param("w", "input", "u8", blocks if self.packed else ("N", "K // 2")),
            Param("scales", "input", self.dtype, of_groups),
        ]
        if self.zeros:
            params.append(Param("zeros", "input", "u8", of_groups, range=(0, 15)))
        return Signature((*params, Param("y", "output", self.dtype, ("M", "N"), strides=ROWS)))

    def sizes(self) -> Mapping[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k}

    def resized(self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]) -> GemmW4:
        return replace(self, m=sizes["M"], n=sizes["N"], k=sizes["K"])

    def work(self) -> Work:
        return least_work(self, {self.dtype: 2 * self.m * self.n * self.k})

    def probes(self) -> tuple[str, ...]:
        return _PROBES

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """Scales are those of weights of magnitude 1, for a sum of products to be no larger than x allows."""
        if probe not in _PROBES:
            raise BadInput(f"gemm_w4: unknown probe {probe!r}", allowed="one of " + ", ".join(_PROBES))
        if probe != "exact":  # bytes of any kind are weights, packed or not
            return self._drawn_inputs(seed, probe)
        drawn = self._exact_inputs(seed)
        if not self.packed:
            return drawn
        w, scales, zeros = pack_w4(drawn["w"], drawn["scales"], drawn.get("zeros"))
        return {"x": drawn["x"], "w": w, "scales": scales, **({} if zeros is None else {"zeros": zeros})}

    def _drawn_inputs(self, seed: int, probe: str) -> dict[str, Array]:
        import numpy as np

        of, rng = self.format, np.random.default_rng([seed, zlib.crc32(b"gemm_w4")])
        size = {"large": _LARGE.get(self.dtype, 2.0**40), "zeros": 0.0}.get(probe, 1.0)
        x = filling.normal((self.m, self.k), of, (seed, zlib.crc32(b"x")), size)
        if probe == "special":
            flat, special = x.reshape(-1), narrow(np.array([np.nan, np.inf, -np.inf]), of)[: x.size]
            flat[rng.choice(flat.size, special.size, replace=False)] = special
        if probe == "denormal":  # one row, the last: the others are equal
            x[:-1] = x[:1]
            x[-1] = narrow(widen(x[-1], of) * TINY[self.dtype], of)
        shapes = {tensor.name: tensor.shape for tensor in self.tensors()}
        shape, count = shapes["scales"], prod(shapes["w"])
        scales, zeros = narrow(_FIRST + _SPREAD * rng.random(shape), of), rng.integers(16, size=shape)
        raw = np.random.SFC64([seed, zlib.crc32(b"w")]).random_raw(-(-count // 8))
        w = raw.view(np.uint8)[:count].reshape(shapes["w"])
        if probe in _ENDS:
            w[:], zeros[:] = _ENDS[probe]
        return {"x": x, "w": w, "scales": scales, **({"zeros": zeros.astype(np.uint8)} if self.zeros else {})}

    def _exact_inputs(self, seed: int) -> dict[str, Array]:
        """All products are 1 or -1 times a row's scale, a power of two, and most cancel: see `cancelling`."""
        import numpy as np

        rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
        pairs = cancelling(rng, self.k, int(1.0 / (4.0 * self.format.epsilon)))
        left, right = (rng.integers(2, size=(rows, self.k), dtype=bool) for rows in (min(self.m, 16), self.n))
        left[:, pairs.second] = left[:, pairs.first]
        right[:, pairs.second] = ~right[:, pairs.first]
        zeros = rng.integers(1, 15, size=(self.n, self.groups))
        each = np.repeat(zeros, self.group or self.k, axis=1)[:, : self.k] if self.zeros else MIDDLE
        q = (each + np.where(right, -1, 1)).astype(np.uint8)
        scales = np.broadcast_to(2.0 ** (np.arange(self.n)[:, None] % 3 - 1), (self.n, self.groups))
        out = {"x": signs(left[rng.integers(len(left), size=self.m)], self.format), "w": q[:, ::2] | q[:, 1::2] << 4}
        out["scales"] = narrow(np.ascontiguousarray(scales), self.format)
        return {**out, **({"zeros": zeros.astype(np.uint8)} if self.zeros else {})}

    def _weights(self, inputs: Mapping[str, Array], rows: Array) -> Array:
        """Those rows of W in f32, which holds them exactly."""
        import numpy as np

        of_groups = [inputs[name] for name in ("scales", *(["zeros"] if self.zeros else []))]
        if self.packed:
            of_groups = [one.T for one in of_groups]
            blocks = inputs["w"].reshape(-1, ceil(self.k / PACKED_K), 8, 4, 2, 2, 2, 2)
            own = blocks[rows // PACKED_N, :, rows % 8]  # rows, blocks of K, t, h, s, e, kk
            own >>= np.where(rows % PACKED_N >= 8, 4, 0).astype(np.uint8).reshape(-1, 1, 1, 1, 1, 1, 1)
            q = (own & 15).transpose(0, 1, 3, 2, 4, 6, 5).reshape(len(rows), -1)[:, : self.k]
        else:
            own = inputs["w"][rows]
            q = np.stack([own & 15, own >> 4], axis=-1).reshape(len(rows), self.k)
        per = self.group or self.k
        wide: Array = q.astype(np.float32)
        scales, *zeros = (one[rows] for one in of_groups)
        each = [widen(scales, self.format).astype(np.float32), *(one.astype(np.float32) for one in zeros)]
        if self.k % per:
            each = [np.repeat(one, per, axis=1)[:, : self.k] for one in each]
        else:
            each, wide = [one[:, :, None] for one in each], wide.reshape(len(rows), self.groups, per)
        wide -= each[1] if self.zeros else MIDDLE
        wide *= each[0]
        return wide.reshape(len(rows), self.k)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        import numpy as np

        values, scale = np.empty((self.m, self.n)), np.empty((self.m, self.n), np.float32)
        with np.errstate(all="ignore"):
            x = widen(inputs["x"], self.format).astype(np.float64)
            norms, step = np.linalg.norm(x, axis=1), max(1, _ROWS // self.k)
            for first in range(0, self.n, step):
                rows = np.arange(first, min(first + step, self.n))
                w = self._weights(inputs, rows)
                values[:, rows] = x @ w.T
                scale[:, rows] = norms[:, None] * np.linalg.norm(w, axis=1) / self.k
        return {"y": Answer(values, np.where(np.isfinite(scale), scale, np.float32(0.0)))}

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        import numpy as np

        rows, columns = np.unravel_index(places, (self.m, self.n))
        values, scale = np.empty(len(places)), np.empty(len(places))
        with np.errstate(all="ignore"):
            x, step = widen(inputs["x"], self.format).astype(np.float64), max(1, _ROWS // self.k)
            for first in range(0, len(places), step):
                some = slice(first, first + step)
                own, w = x[rows[some]], self._weights(inputs, columns[some])
                values[some] = np.einsum("ik,ik->i", own, w)
                scale[some] = np.linalg.norm(own, axis=1) * np.linalg.norm(w, axis=1) / self.k
        return Answer(values, np.where(np.isfinite(scale), scale, 0.0))

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators.expr.reference_kernels import OwnScale, reference_kernel
        from deepgen.operators.named.products import gemm_w4_expression

        return reference_kernel(gemm_w4_expression(self, scaled=True), language, {"y": OwnScale("scale", self.dtype)})

    def expression(self) -> Expression:
        from deepgen.operators.named.products import gemm_w4_expression

        return gemm_w4_expression(self)

    def tolerance(self, output: str = "y", probe: str = "normal") -> Tolerance:
        """That of a product of wide weights: what they stand for is exact, and so is what kernels make of them."""
        return gemm(1, 1, self.k, dtype=self.dtype).tolerance(probe=probe)

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> GemmW4:
        return cls(**{_WORDS.get(word, word): plain(value) for word, value in parameters.items()})

    def parameters(self) -> Mapping[str, Any]:
        words = {field: word for word, field in _WORDS.items()}
        return {words.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}


def gemm_w4(
    m: int,
    n: int,
    k: int,
    *,
    group: int = 128,
    dtype: str = "bf16",
    zeros: bool = False,
    weight_layout: str = NONE,
) -> GemmW4:
    """y = x * W^T, of M x N, with sums over K products in f32, and W[n, k] = (q[n, k] - zero) * scale.

    group: how many weights of a row share a scale (and a zero point): a power of two of at least 32; 0: all.
    dtype: of x, scales and y: bf16 or f16.
    zeros: whether groups have zero points, a byte each; without them the zero point is 8.
    weight_layout: none: N x K / 2 bytes, two weights each, the even k in the lower half, and scales N x groups;
        packed: what `pack_w4` makes of these.
    """
    m, n, k, group = map(plain, (m, n, k, group))
    return GemmW4(m, n, k, group, our_name(dtype), zeros, weight_layout)


def pack_w4(w: Any, scales: Any, zeros: Any = None) -> tuple[Any, Any, Any]:
    """Weights, scales and zero points (or None) as kernels with weight_layout="packed" take them.

    w: N x K / 2 bytes, two weights each, the even k in the lower half; scales and zeros: N x groups. numpy arrays, or
    tensors of torch, wherever they are. The results are N / 16 x K / 64 x 32 x 16 bytes, and groups x N: 16 bytes are
    what a lane of a warp multiplies in four steps of a matrix unit. Sizes that are no multiples are filled up.
    """
    if len(w.shape) != 2 or len(scales.shape) != 2 or w.shape[0] != scales.shape[0] or w.shape[1] < 1:
        shapes = " and ".join("x".join(map(str, one.shape)) for one in (w, scales))
        raise BadInput(f"pack_w4: w and scales are {shapes}", allowed="N x K / 2 bytes, and N x groups")
    if zeros is not None and tuple(zeros.shape) != tuple(scales.shape):
        raise BadInput(f"pack_w4: zeros are {'x'.join(map(str, zeros.shape))}", allowed="of the shape of scales")
    if str(w.dtype).rpartition(".")[2] != "uint8":
        raise BadInput(f"pack_w4: w is {w.dtype}", allowed="bytes: uint8")
    high, wide = ceil(w.shape[0] / PACKED_N), ceil(2 * w.shape[1] / PACKED_K)
    torch = hasattr(w, "new_zeros")
    shape = (high * PACKED_N, wide * PACKED_K // 2)
    whole: Any = w.new_zeros(shape) if torch else _empty(shape)
    whole[: w.shape[0], : w.shape[1]] = w
    # r: row / 8, g: row % 8; of 64 steps of K h: 32, t: 8, s: 4, kk: 2; the halves of a byte are even and odd k
    pairs = whole.reshape(high, 2, 8, wide, 2, 4, 2, 2)
    order = (0, 3, 2, 5, 4, 6, 7, 1)  # blocks, g, t, h, s, kk, r
    pairs = pairs.permute(order) if torch else pairs.transpose(order)
    low, up = pairs[..., 0], pairs[..., 1]  # rows 0 to 7, and 8 to 15
    packed = whole.reshape(high, wide, 8, 4, 2, 2, 2, 2) * 0
    packed[..., 0, :] = (low & 15) | ((up & 15) << 4)
    packed[..., 1, :] = (low >> 4) | ((up >> 4) << 4)
    packed = packed.reshape(high, wide, 32, 16)
    return packed, _by_group(scales, torch), None if zeros is None else _by_group(zeros, torch)


def _empty(shape: tuple[int, int]) -> Array:
    import numpy as np

    return np.zeros(shape, np.uint8)


def _by_group(of_groups: Any, torch: bool) -> Any:
    return of_groups.T.contiguous() if torch else of_groups.T.copy()

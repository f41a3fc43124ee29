"""Grouped GEMM: a product for each expert, whose rows follow each other; how many each has is data.

Rows are sorted by expert: those of expert e end before row `offsets[e]` and begin where those of expert e - 1 end. So
the shapes are fixed, and no one needs to wait for the offsets. In layouts `nt` and `nn` each row of A is multiplied by
its expert's matrix of B. In layout `tn`, the gradient of such a B, each expert's rows of A and B are multiplied: the
length of sums varies, and an expert without rows yields zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from deepgen.operators.base import ReferenceApart, Tolerance, Work, least_work
from deepgen.operators.gemm import Gemm, gemm
from deepgen.operators.signature import ROWS, Param, Signature, Size
from deepgen.operators.words import Word, plain
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

LAYOUTS = ("nt", "nn", "tn")
DTYPES = ("bf16", "f16", "tf32", "f8e4m3", "f8e5m2", "f32", "f64")
SCALES = ("none", "expert", "row", "column")
PROBES = ("normal", "large", "denormal", "zeros", "special", "exact")
_FIELDS = {"E": "experts", "M": "m", "N": "n", "K": "k"}


@dataclass(frozen=True)
class GroupedGemm(ReferenceApart):
    """A grouped GEMM; its parameters are its fields."""

    name: ClassVar[str] = "grouped_gemm"
    words: ClassVar[tuple[Word, ...]] = (
        Word("E", "number of experts", needed=True, usual=8),
        Word("M", "rows of A and C, of all experts together; with layout tn rows of each C", needed=True),
        Word("N", "columns of C", needed=True),
        Word("K", "length of sums; with layout tn rows of A and B, of all experts together", needed=True),
        Word("dtype", "data type of A and B; results of 8-bit types are wider", "choice", "bf16", choices=DTYPES),
        Word("layout", "nt or nn: B is N x K or K x N; tn: the gradient of B", "choice", "nt", choices=LAYOUTS),
        Word("scales", "an f32 factor for each expert, row, or column of an expert", "choice", "none", choices=SCALES),
        Word("fast_sums", "allow 8-bit floats to accumulate below f32 precision", "flag", False),
    )

    experts: int
    m: int
    n: int
    k: int
    a: str = "bf16"
    c: str = "bf16"
    acc: str = "f32"
    layout: str = "nt"
    scales: str = "none"
    fast_sums: bool = False

    def __post_init__(self) -> None:
        for word, field in _FIELDS.items():
            size = getattr(self, field)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise BadInput(f"grouped_gemm: {word} is {size!r}", allowed="must be an integer of at least 1")
        for word, value, allowed in (
            ("dtype", self.a, DTYPES),
            ("layout", self.layout, LAYOUTS),
            ("scales", self.scales, SCALES if self.layout != "tn" else SCALES[:2]),
        ):
            if value not in allowed:
                raise BadInput(f"grouped_gemm: {word} {value!r}", allowed="one of " + ", ".join(allowed))
        if self.fast_sums and not self.a.startswith("f8"):
            what = f"grouped_gemm: fast_sums with {self.a}: only 8-bit floats have fast sums"
            raise BadInput(what, allowed="fast_sums=False, or f8e4m3 or f8e5m2")
        self.product(1, 1)  # its formats are a product's

    @property
    def gradient(self) -> bool:
        """Whether sums go over an expert's rows."""
        return self.layout == "tn"

    @property
    def rows(self) -> int:
        """Of all experts together."""
        return self.k if self.gradient else self.m

    def product(self, rows: int, depth: int, *, batch: int = 1) -> Gemm:
        """A product of so many rows and steps in the same formats."""
        scales = {"expert": "tensor"}.get(self.scales, self.scales)
        formats = (self.a, self.a, self.c, self.acc)
        return Gemm(rows, self.n, depth, batch, *formats, self.layout, scales=scales, fast_sums=self.fast_sums)

    def describe(self) -> str:
        extras = [f"scales={self.scales}"] if self.scales != "none" else []
        extras += ["fast sums"] if self.fast_sums else []
        formats = "_".join(dict.fromkeys((self.a, self.c)))
        shape = f"{self.experts} experts {self.m}x{self.n}x{self.k}"
        return " ".join([f"grouped_gemm {formats} {self.layout}", shape, *extras])

    def slug(self) -> str:
        formats = "_".join(dict.fromkeys((self.a, self.c)))
        extras = [self.scales] if self.scales != "none" else []
        extras += ["fast"] if self.fast_sums else []
        sizes = "x".join(map(str, self.sizes().values()))
        return "-".join(["grouped_gemm", formats, self.layout, sizes, *extras])

    def signature(self) -> Signature:
        a, b, c = self._shapes
        params = [
            Param("A", "input", self.a, a, strides=ROWS),
            Param("B", "input", self.a, b, strides=ROWS),
            Param("offsets", "input", "i32", ("E",), range=(0, "K" if self.gradient else "M")),
        ]
        lengths: dict[str, tuple[Size, ...]] = {"expert": ("E",), "row": ("M",), "column": ("E", "N")}
        if self.scales != "none":
            params.append(Param("scale", "input", "f32", lengths[self.scales]))
        return Signature((*params, Param("C", "output", self.c, c, strides=ROWS)))

    @property
    def _shapes(self) -> tuple[tuple[Size, ...], ...]:
        if self.gradient:
            return ("K", "M"), ("K", "N"), ("E", "M", "N")
        return ("M", "K"), (("E", "N", "K") if self.layout == "nt" else ("E", "K", "N")), ("M", "N")

    def sizes(self) -> Mapping[str, int]:
        return {word: getattr(self, field) for word, field in _FIELDS.items()}

    def scalars(self) -> Mapping[str, int | float]:
        return {**super().scalars(), "alpha": 1.0, "beta": 0.0}

    def aliases(self) -> Mapping[str, str]:
        """A GEMM's names, by which its families call them."""
        inner = {"A": 0, "B": 0 if self.gradient else 1, "C": 1 if self.gradient else 0}
        outer = {f"stride_{t.lower()}": f"stride_{t}_0" if place else "0" for t, place in inner.items()}
        return {"batch": "E", **{f"ld{t.lower()}": f"stride_{t}_{place}" for t, place in inner.items()}, **outer}

    def resized(
        self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]
    ) -> GroupedGemm:
        own: dict[str, Any] = {_FIELDS[word]: size for word, size in sizes.items() if word in _FIELDS}
        return replace(self, **own)

    def work(self) -> Work:
        return least_work(self, {self.a: 2 * self.m * self.n * self.k})

    def probes(self) -> tuple[str, ...]:
        return PROBES

    @staticmethod
    def reference_module() -> Any:
        from deepgen.operators import grouped_reference

        return grouped_reference

    def tolerance(self, output: str = "C", probe: str = "normal") -> Tolerance:
        """That of one product over all of K: scales of shorter sums are smaller by as much."""
        return self.product(1, self.k).tolerance("C", probe)

    def to_json(self) -> JsonObject:
        return {"name": self.name, **asdict(self)}

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> GroupedGemm:
        return grouped_gemm(**{_FIELDS.get(word, word): value for word, value in parameters.items()})

    def parameters(self) -> Mapping[str, Any]:
        more = {"scales": self.scales} if self.scales != "none" else {}
        sums = {"fast_sums": True} if self.fast_sums else {}
        return {**self.sizes(), "dtype": self.a, "layout": self.layout, **more, **sums}


def grouped_gemm(
    experts: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "bf16",
    c: str | None = None,
    layout: str = "nt",
    scales: str = "none",
    fast_sums: bool = False,
) -> GroupedGemm:
    """C = A op(B[e]) for the rows of each expert e, which end before row `offsets[e]`: i32, ascending, the last M.

    m, n, k: rows of A for all experts together, columns of C, and length of sums. With layout tn, k are the rows of A
        and B for all experts together, and C[e], of m x n, is the sum over those of expert e.
    dtype: of A, B and C; but C is bf16 for 8-bit floats.
    layout: nt or nn: B is experts x N x K or experts x K x N. tn: the gradient of B, of A^T B for each expert.
    scales: none, expert, row or column: an f32 factor for each expert, each row, or each column of each expert.
    fast_sums: whether 8-bit floats may be accumulated below f32 precision, as tensor cores do.
    """
    experts, m, n, k = map(plain, (experts, m, n, k))
    if not isinstance(dtype, str):
        raise BadInput(f"grouped_gemm: dtype is {dtype!r}", allowed="one of " + ", ".join(DTYPES))
    layout = layout.lower() if isinstance(layout, str) else layout
    usual = gemm(1, 1, 1, dtype=dtype, c=c)
    return GroupedGemm(experts, m, n, k, usual.a, usual.c, usual.acc, layout, scales, fast_sums)

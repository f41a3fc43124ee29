"""Only GEMM's own rooms know GEMM: any other place that names its letters would not serve the next operator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepgen

ROOT = Path(deepgen.__file__).parent
# Rooms of other operators, which have letters of their own.
OTHERS = (
    "operators/conv2d.py", "operators/references.py", "kernels/conv2d", "operators/named", "baselines/torch_gpu.py",
    "baselines/torch_named.py",
)  # fmt: skip
LIBRARIES = (
    "cblas.py", "cublaslt.py", "cublaslt_api.py", "cutlass_dsl.py", "numpy_blas.py", "onednn.py", "products.py",
    "torch_compile.py", "torch_cpu.py", "torch_gpu.py", "triton_kernel.py", "triton_matmul.py", "tvm_schedules.py",
    "vendor_model.py", "rocm.py",
)  # fmt: skip
ROOMS = (
    "operators/gemm.py",
    "operators/references.py",
    "operators/named/products.py",
    "operators/gemm_inputs.py",
    "kernels/gemm",
    "testing",  # suites are tests, with problems of their own
    "kernels/shared/x86.py",
    *(f"baselines/{name}" for name in LIBRARIES),
    "frontends/torch/calls.py",  # which operator a call of torch's is
    *OTHERS,
)
# What else has such a name, and where GEMM is handed to users and registered.
EXCEPTIONS = {
    "__init__.py": {"Gemm", "gemm", "'gemm'"},
    "operators/__init__.py": {"Gemm", "deepgen.operators.gemm", "gemm", "'gemm'"},
    "toolchains/process.py": {"'C'"},  # a locale
    "toolchains/programs.py": {"'C'"},
    "run/measure/bench.py": {"'B'"},
    "run/call/arrays.py": {".layout"},  # torch's word for dense or sparse
    "targets/cpu.py": {"'C'"},  # a type variable
    "targets/host.py": {"'K'", "'M'"},  # units
}  # fmt: skip
NAME = re.compile(r"gemm|^(ld|stride_)[abc]$", re.IGNORECASE)
TEXT = re.compile(r"^([ABCMNK]|MNK?|ABC?|gemm|(ld|stride_)[abc]|nn|nt|tn|tt)$")
FIELDS = ("m", "n", "k", "a", "b", "c", "acc")


def letters(text: str) -> Iterator[tuple[int, str]]:
    """Lines that know GEMM: by an identifier, a text that is one of its letters, or a field of an operator."""
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        yield from ((line, name) for name in identifiers(node) if NAME.search(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and TEXT.match(node.value):
            yield line, repr(node.value)
        if isinstance(node, ast.Attribute) and (node.attr == "layout" or of_operator(node.value, node.attr)):
            yield line, f".{node.attr}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            field = getattr(node.args[1], "value", None)
            if field == "layout" or of_operator(node.args[0], field):
                yield line, f".{field}"


def identifiers(node: ast.AST) -> list[str]:
    found = [getattr(node, kind, None) for kind in ("id", "attr", "arg", "name", "module")]
    return [name for name in found if isinstance(name, str)]


def of_operator(owner: ast.AST, field: object) -> bool:
    return field in FIELDS and ast.unparse(owner).split(".")[-1] in ("op", "operator")


def inside(place: str) -> bool:
    return any(place == room or place.startswith(f"{room}/") for room in ROOMS)


def places() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if not inside(place):
            yield place, path


def test_no_letters_of_gemm_outside_its_rooms() -> None:
    found = [
        f"{place}:{line}: {what}"
        for place, path in places()
        for line, what in letters(path.read_text())
        if what not in EXCEPTIONS.get(place, ())
    ]
    assert not found, "these know GEMM: ask the operator's signature, sizes, scalars, work or words\n" + "\n".join(
        found
    )


def test_every_exception_is_needed() -> None:
    for place, allowed in EXCEPTIONS.items():
        assert {what for _, what in letters((ROOT / place).read_text())} == allowed, place


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from deepgen.operators import Gemm", ["Gemm"]),
        ("from deepgen.operators.gemm import LAYOUTS", ["deepgen.operators.gemm"]),
        ("def f(operator): return operator.k", [".k"]),
        ("x = task.operator.a", [".a"]),
        ("x = getattr(task.operator, 'a', 'f32')", [".a"]),
        ("x = thing.layout[0]", [".layout"]),
        ("c = arrays['C']", ["'C'"]),
        ("rows = scalars['lda']", ["'lda'"]),
        ("def f(lda): pass", ["lda"]),
        ("run(gemm=1)", ["gemm"]),
        ("'Such as: gemm MNK=1024'", []),
        ("a, b, c, m, n, k = six", []),
        ("window.k = options.layout_of(target)", []),
    ],
)
def test_what_counts_as_a_letter(text: str, found: list[str]) -> None:
    assert [what for _, what in letters(text)] == found

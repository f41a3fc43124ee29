"""The warpgroup matrix instruction as a header: one function for the dtypes and columns of a config."""

from __future__ import annotations

from deepgen.operators import Gemm
from deepgen.vocabulary import dtype

# PTX names of formats.
_NAMES = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8"}
STEP_BYTES = 32  # of K in one instruction, for any format


def products_header(gemm: Gemm, columns: int) -> str:
    """`product(sums, a, b, add)`: 64 rows by `columns`; without `add` the sums start at zero."""
    count = columns // 2
    whole = gemm.acc == "i32"
    letter = "r" if whole else "f"
    k = STEP_BYTES // dtype(gemm.a).bytes
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}"
    formats = f"{'s32' if whole else 'f32'}.{_NAMES[gemm.a]}.{_NAMES[gemm.b]}"
    modes = "" if whole else ", 1, 1"
    if dtype(gemm.a).bytes == 2:  # only these formats can be read with rows innermost
        modes += f", {int(gemm.layout[0] == 't')}, {int(gemm.layout[1] == 'n')}"
    sums = _lines([f"%{i}" for i in range(count)], 16)
    operands = _lines([f'"+{letter}"(d[{i}])' for i in range(count)], 6)
    text = "\n".join(f'        "{line} "' for line in sums)
    outputs = "\n".join(f"          {line}" for line in operands)
    return f"""// The products of a warpgroup: 64 rows of A by {columns} of B, {k} steps of K.
#pragma once
#include "numbers.h"

DG_DEVICE void product({"int" if whole else "float"}* d, u64 a, u64 b, int add) {{
    asm volatile(
        "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
        "{name}.{formats} {{"
{text}
        "}}, %{count}, %{count + 1}, add{modes};\\n}}"
        :
{outputs}
        : "l"(a), "l"(b), "r"(add));
}}
"""


def _lines(words: list[str], most: int) -> list[str]:
    rows = [", ".join(words[i : i + most]) for i in range(0, len(words), most)]
    return [*(row + "," for row in rows[:-1]), rows[-1]]

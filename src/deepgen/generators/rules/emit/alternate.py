"""Every second element of a tensor as a vector, in C."""

from __future__ import annotations

ALTERNATE = "alternate_"  # before a type of vectors: the function that loads them so


def function(kind: str, lanes: int) -> str:
    """The C function for vectors of so many elements; gcc has shuffles of this form from 12 on.

    The second half is taken from a vector that ends with the last element: nothing beyond that one is read.
    """
    name, half = f"{kind}x{lanes}", lanes // 2
    chosen = ", ".join(str(2 * n + (n >= half)) for n in range(lanes))
    each = ", ".join(f"from[{2 * n}]" for n in range(lanes))
    return "\n".join(
        [
            f"static inline {name} {ALTERNATE}{name}(const {kind} *from) {{",
            "#if defined(__clang__) || __GNUC__ >= 12",
            f"    return __builtin_shufflevector(at_{name}(from), at_{name}(from + {lanes - 1}), {chosen});",
            "#else",
            f"    return ({name}){{{each}}};",
            "#endif",
            "}",
            "",
        ]
    )

"""The instruction by which four warps multiply matrices, as a function: its operands follow from the columns."""

from __future__ import annotations

from deepgen.compiler.intrinsics.matrix import WideProduct


def function(product: WideProduct) -> list[str]:
    """`product.name(sums, rows, columns)`: sums in registers, columns by their place in shared memory, rows either."""
    count, kind, sum_ = product.columns // 2, product.intrinsic.operand, product.intrinsic.sum
    whole = sum_ == "i32"
    sums = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"+{"r" if whole else "f"}"(d[{n}])' for n in range(count))
    instruction = f"wgmma.mma_async.sync.aligned.{product.intrinsic.instruction.format(n=product.columns)}"
    sizes = f"{kind}, {product.columns}, {product.leading}"
    if product.apart:
        rows, second, turned = f"%{count}", count + 1, "0, "
        inputs = f'"l"(first_operand(a, {product.apart}))'
        head, emulated = "u32 a", f"multiply_lines<{sizes}, {product.apart}>"
    else:
        rows, second, turned = f"{{{', '.join(f'%{count + n}' for n in range(4))}}}", count + 4, ""
        inputs = ", ".join(f'"r"(a[{n}])' for n in range(4))
        head, emulated = "const u32* a", f"multiply_wide<{sizes}>"
    # Whole numbers are neither negated nor turned.
    modes = "add" if whole else f"add, 1, 1, {turned}{int(product.leading > 0)}"
    head = f"DG_DEVICE void {product.name}({sum_}* d, {head}, u32 b) {{"
    return [
        "#if defined(DG_EMULATE)",
        f"{head} emulate::{emulated}(d, a, b); }}",
        "#else",
        head,
        '    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"',
        f'                 "{instruction} {{{sums}}}, {rows}, %{second}, {modes};\\n}}"',
        f"                 : {outputs}",
        f'                 : {inputs}, "l"(second_operand(b, {product.leading})));',
        "}",
        "#endif",
    ]

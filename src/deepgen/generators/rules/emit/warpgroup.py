"""The instruction by which four warps multiply matrices, as a function: its operands follow from the columns."""

from __future__ import annotations

from deepgen.generators.rules.intrinsics.matrix import WideProduct


def function(product: WideProduct) -> list[str]:
    """`product.name(sums, rows, columns)`: sums and rows in registers, columns where they begin in shared memory."""
    count, kind = product.columns // 2, product.intrinsic.operand
    sums = ", ".join(f"%{n}" for n in range(count))
    rows = ", ".join(f"%{count + n}" for n in range(4))
    outputs = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    inputs = ", ".join(f'"r"(a[{n}])' for n in range(4))
    instruction = f"wgmma.mma_async.sync.aligned.{product.intrinsic.instruction.format(n=product.columns)}"
    modes = f"add, 1, 1, {int(product.leading > 0)}"
    head = f"DG_DEVICE void {product.name}(f32* d, const u32* a, u32 b) {{"
    return [
        "#if defined(DG_EMULATE)",
        f"{head} emulate::multiply_wide<{kind}, {product.columns}, {product.leading}>(d, a, b); }}",
        "#else",
        head,
        '    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"',
        f'                 "{instruction} {{{sums}}}, {{{rows}}}, %{count + 4}, {modes};\\n}}"',
        f"                 : {outputs}",
        f'                 : {inputs}, "l"(second_operand(b, {product.leading})));',
        "}",
        "#endif",
    ]

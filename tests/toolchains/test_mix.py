"""The instruction mix, from disassemblies in the format of the usual tools."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deepgen.targets import Cpu
from deepgen.toolchains import build_once, instruction_mix
from deepgen.toolchains.compilers.disassembly import CLASSES, mix
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, Source

# Each line: an instruction as its disassembler writes it, and its class; None if it is not counted.
X86 = """
vmovups (%rsi,%rax,4),%zmm0 = loads
vfmadd231ps %zmm0,%zmm1,%zmm2 = vector
vfmadd231ps (%rdx),%zmm1,%zmm2 = vector
vfmadd231ss %xmm0,%xmm1,%xmm2 = other
vpdpbusd %zmm0,%zmm1,%zmm2 = vector
tdpbf16ps %tmm0,%tmm1,%tmm2 = matrix
tileloadd (%rax,%rbx,1),%tmm0 = loads
vmovups %zmm2,(%rdi){%k1} = stores
vmovaps %zmm1,%zmm2 = other
mov %rax,0x8(%rsp) = stores
mulps %xmm0,%xmm1 = vector
add $0x40,%rax = other
jne 1140 <gemm+0x20> = branches
bnd jmp 1140 <gemm+0x20> = branches
nopw 0x0(%rax,%rax,1) = None
"""
ARM = """
ldp q0, q1, [x0], #32 = loads
fmla v0.4s, v1.4s, v2.s[0] = vector
fmla z0.s, p0/m, z1.s, z2.s = vector
bfmmla v0.4s, v1.8h, v2.8h = matrix
fmadd s0, s1, s2, s3 = other
dup v0.4s, v1.s[0] = other
str q0, [x1] = stores
b.ne 718 <gemm+0x20> = branches
nop = None
"""
RISCV = """
vle32.v v8,(a0) = loads
vfmacc.vv v8,v9,v10 = vector
vse32.v v8,(a1) = stores
vsub.vv v8,v9,v10 = vector
vsetvli a2,a1,e32,m1,ta,ma = other
flw fa5,0(a0) = loads
sd ra,8(sp) = stores
bnez a3,5b0 = branches
"""
SASS = """
LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; = loads
@P0 BRA `(.L_x_1) ; = branches
@!UP0 UTMALDG.2D [UR8], [UR6] ; = loads
HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24 ; = matrix
HMMA.16816.F32.BF16 R4, R8, R12, R4 ; = matrix
FFMA R0, R1, R2, R3 ; = vector
IMAD.MOV.U32 R1, RZ, RZ, R2 ; = other
STG.E desc[UR4][R2.64], R0 ; = stores
NOP ; = None
"""
AMDGCN = """
global_load_dwordx4 v[0:3], v[4:5], off = loads
ds_read_b128 v[0:3], v4 = loads
v_mfma_f32_32x32x8_bf16_1k v[0:15], v[16:17], v[18:19], v[0:15] = matrix
v_fma_f32 v0, v1, v2, v3 = vector
v_mov_b32_e32 v0, 0 = other
s_waitcnt vmcnt(0) = other
s_cbranch_scc0 65520 = branches
global_store_dword v0, v1, s[2:3] = stores
s_nop 0 = None
"""
FORMS = {
    "x86_64": (X86, "    1139:\t{}"),
    "aarch64": (ARM, " 71c:\t{}"),
    "riscv64": (RISCV, "     5a8:\t{}"),
    "sass": (SASS, "        /*0a30*/                   {}"),
    "amdgcn": (AMDGCN, "\t{}                // 000000001000: C0060002"),
}


@pytest.mark.parametrize("machine", FORMS)
def test_each_instruction_has_its_class(machine: str) -> None:
    text, form = FORMS[machine]
    rows = [line.rpartition(" = ") for line in text.strip().splitlines()]
    for instruction, _, kind in rows:
        always = form.format(rows[0][0])  # so that something remains if the instruction is not counted
        found = mix(f"{always}\n{form.format(instruction)}\n", machine)
        assert found["instructions"] == (1 if kind == "None" else 2), instruction
        assert kind == "None" or found[kind] == (1.0 if kind == rows[0][2] else 0.5), instruction


def test_what_compilers_add_is_not_counted() -> None:
    ours = "Disassembly of section .text:\n\n0000000000000700 <gemm>:\n 700:\tfmla v0.4s, v1.4s, v2.4s\n"
    added = "0000000000000540 <call_weak_fn>:\n 540:\tldr x0, [x0]\n"
    linked = "Disassembly of section .plt:\n\n0000000000000500 <expf@plt>:\n 500:\tbr x17\n"
    assert mix(linked + ours + added, "aarch64") == {
        "instructions": 1.0, **dict.fromkeys(CLASSES, 0.0), "vector": 1.0
    }  # fmt: skip


def test_instructions_that_the_disassembler_does_not_know_are_told() -> None:
    with pytest.raises(ValueError, match="cannot decode 1 of its 2 instructions"):
        mix(" 5a8:\tadd a0,a0,a1\n 5ac:\t<unknown>\n", "riscv64")
    with pytest.raises(ValueError, match="no instructions"):
        mix("", "sass")


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump here")
def test_the_mix_of_a_built_kernel(target: Cpu, tmp_path: Path) -> None:
    body = "void add(const float *a, float *b) { for (int i = 0; i < 4096; i++) b[i] += a[i]; }"
    made = build_once(Kernel("add", "c", (Source("add.c", body),), ("-O3",), LaunchPlan(())), target)
    found = instruction_mix(Path(made.binary), target)
    assert found["vector"] > 0 and found["loads"] > 0 and found["stores"] > 0 and found["branches"] > 0
    assert sum(found[kind] for kind in CLASSES) == pytest.approx(1.0, abs=1e-3)
    (tmp_path / "torn.so").write_bytes(b"\x7fELF")
    with pytest.raises(DeepgenError, match="cannot disassemble"):
        instruction_mix(tmp_path / "torn.so", target)

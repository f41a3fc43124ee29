"""Disassembles binaries, and computes their instruction mix.

Counts are static: each instruction in the binary counts once.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deepgen.vocabulary import DeepgenError

_SECONDS = 60.0


def sass(nvdisasm: str, cubin: Path) -> str:
    """The disassembly of NVIDIA's machine code."""
    return _output(nvdisasm, "--print-code", str(cubin))


def objdump(program: str, binary: Path) -> str:
    """The disassembly of a CPU's machine code."""
    return _output(program, "--disassemble", "--no-show-raw-insn", str(binary.absolute()))


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {error.returncode}"]
        raise DeepgenError(f"{argv[0]} cannot disassemble it: {message[-1].strip()}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DeepgenError(f"{argv[0]} cannot disassemble {argv[-1]}: {error}") from error
    return done.stdout.decode(errors="replace")


CLASSES = ("vector", "matrix", "loads", "stores", "branches", "other")


@dataclass(frozen=True)
class Ops:
    """Instructions of one class: patterns of their names and, where these do not suffice, of their operands."""

    kind: str
    names: str
    operands: str = ""


@dataclass(frozen=True)
class Assembly:
    """A disassembler's format for an instruction set. The first matching rule decides."""

    line: str  # groups: name, operands
    rules: tuple[Ops, ...]
    padding: str  # names of padding instructions, which are not counted


_OBJDUMP = r"\s*[0-9a-f]+:\s+(?:(?:rep\w*|lock|bnd|notrack|data16|cs|ds|es|fs|gs) )*([a-zA-Z][\w.]*)\s*(.*)"
_X86 = Assembly(
    _OBJDUMP,
    (
        Ops("branches", r"j\w+|call\w*|ret\w*|loop\w*"),
        Ops("matrix", r"tdp\w+|tcmm\w+"),
        Ops("loads", r"tileload\w*|prefetch\w*|pop\w*|v?p?gather\w*|leave"),
        Ops("stores", r"tilestore\w*|push\w*|v?p?scatter\w*|(?:clflush|clwb)\w*"),
        # AT&T syntax: the destination comes last. A move between registers is neither a load nor a store.
        Ops("stores", r"(?:v?mov|vextract|vpmov|vpextr|v?p?compress|set)\w*", r".*\)\s*(?:\{.*\})?"),
        Ops("loads", r"(?:v?mov|vbroadcast|vpbroadcast|vpmov|v?lddqu|v?p?expand|vinsert|vpinsr)\w*", r".*\(.*"),
        # The suffixes of scalar arithmetic.
        Ops("other", r"v?(?:add|sub|mul|div|sqrt|max|min|rcp|rsqrt|cmp|cvt|round|f)\w*s[shd]"),
        Ops("vector", r"vp?(?:add|sub|mul|madd|dp|div|sqrt|max|min|and|or|xor|abs|avg|sad|sll|srl|sra|cmp)\w*"),
        Ops("vector", r"v(?:f|rcp|rsqrt|cvt|round|hadd)\w*"),
        Ops("vector", r"(?:add|sub|mul|div|sqrt|min|max|andn?|or|xor|hadd|cmp\w*|rcp|rsqrt|dp)p[sd]|cvt\w+p[sd]"),
        Ops("vector", r"p(?:add|sub|mul|madd|andn?|or|xor|max|min|avg|sad|sll|srl|sra|cmp|abs)\w+"),
    ),
    r"nop\w*|xchg|int3|endbr64",
)
_ARM = Assembly(
    _OBJDUMP,
    (
        Ops("branches", r"b|bl|blr|br|ret|b\.\w+|cbn?z|tbn?z"),
        Ops("matrix", r"\w*mmla|\w*mop[as]"),
        Ops("loads", r"ld\w+|prf\w+"),
        Ops("stores", r"st\w+"),
        Ops("other", r"mov\w*|dup|ins|[us]mov|zip\d|uzp\d|trn\d|ext|tb[lx]|fmov|ptrue|while\w+|rev\w*"),
        Ops("vector", r"\w+", r".*\b[vz]\d+\.\w+.*"),
    ),
    r"nop|udf|bti",
)
_RISCV = Assembly(
    _OBJDUMP,
    (
        Ops("branches", r"(?:c\.)?(?:b(?:eq|ne|lt|ge|gt|le)u?z?|j|jal|jalr|jr)|ret|call|tail"),
        Ops("matrix", r"(?:th\.)?m(?:fmacc|maqa)\w*(?:\.\w+)*|sf\.\w*mm\w*(?:\.\w+)*"),
        Ops("loads", r"(?:c\.)?l[bhwd]u?(?:sp)?|(?:c\.)?fl[hwdq](?:sp)?|vl[^.]*\.v|prefetch\.\w"),
        Ops("stores", r"(?:c\.)?s[bhwd](?:sp)?|(?:c\.)?fs[hwdq](?:sp)?|vs(?:s?e\d+|[uo]xei\d+|m|\dr|s?seg\w+)\.v"),
        Ops("other", r"v(?:set|f?mv|slide|rgather|id|merge|compress)[\w.]*"),
        Ops("vector", r"v[\w.]+"),
    ),
    r"(?:c\.)?nop|unimp",
)
_RISCV_SOURCE = replace(_RISCV, line=r"\t([a-z][\w.]*)\t?([^#]*)")  # compiler output instead of a disassembly
_SASS = Assembly(
    r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)(.*)",
    (
        Ops("branches", r"BRA|BRX|BRXU|JMP|JMX|CALL|RET|EXIT|BREAK|BSSY|BSYNC|WARPSYNC"),
        Ops("matrix", r"[HIDBQFO]MMA|[HIQB]GMMA|UTC\w*MMA"),
        Ops("loads", r"LD|LD[GSLCT]|LDSM|LDGSTS|U?LDCU?|ULDC|UTMALDG|UTMAPF|UBLKCP|TEX|TLD4?|TLDS"),
        Ops("stores", r"ST|ST[GSL]|STSM|RED|REDG|ATOM|ATOM[GS]|UTMASTG|UTMAREDG"),
        Ops("vector", r"F(?:ADD|MUL|FMA|MNMX)[23]?|D(?:ADD|MUL|FMA)|H(?:ADD|MUL|FMA|MNMX)2|MUFU|I?DP[24]?A?"),
    ),
    r"NOP",
)
_AMDGCN = Assembly(
    r"\s+([a-z]\w+)\s*([^/]*)",
    (
        Ops("branches", r"s_c?branch\w*|s_endpgm\w*|s_setpc\w*|s_swappc\w*|s_call\w*"),
        Ops("matrix", r"v_(?:s?w?mfmac?|wmma|swmmac)\w+"),
        Ops("loads", r"(?:global|buffer|flat|scratch|tbuffer|image|s|s_buffer)_load\w*|ds_(?:load|read)\w*"),
        Ops("stores", r"(?:global|buffer|flat|scratch|tbuffer|image)_(?:store|atomic)\w*|ds_(?:store|write|add)\w*"),
        Ops("other", r"v_(?:mov|accvgpr|cndmask|cmp|readlane|readfirstlane|writelane|perm|swap|nop)\w*"),
        Ops("vector", r"v_\w+"),
    ),
    r"s_nop|s_code_end|v_nop",
)
DIALECTS: Mapping[str, Assembly] = {
    "x86_64": _X86,
    "aarch64": _ARM,
    "riscv64": _RISCV,
    "riscv64 source": _RISCV_SOURCE,
    "sass": _SASS,
    "amdgcn": _AMDGCN,
}
_SECTION = re.compile(r"Disassembly of section (\S+):")
_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")
_UNKNOWN = re.compile(r"\s*[0-9a-f]+:\s+(<unknown>|\(bad\)|\.(?:inst|insn|word|short|byte|[248]byte))(.*)")
_STRANGE = "unknown"
_MOST_UNKNOWN = 0.02  # of all instructions
# Code that compilers add to every shared library.
_STARTUP = frozenset(
    (
        *("_init", "_fini", "_start", "call_weak_fn", "frame_dummy"),
        *("deregister_tm_clones", "register_tm_clones", "__do_global_dtors_aux"),
    )
)


def mix(text: str, machine: str) -> dict[str, float]:
    """The number of instructions, and the share of each class. Raises ValueError if too few are decoded."""
    dialect = DIALECTS[machine]
    counts = Counter(_kind(dialect, name, operands) for name, operands in _instructions(text, dialect))
    total = sum(counts.values())
    if not total:
        raise ValueError("its disassembly shows no instructions")
    if counts[_STRANGE] > _MOST_UNKNOWN * total:
        raise ValueError(f"the disassembler cannot decode {counts[_STRANGE]} of its {total} instructions")
    return {"instructions": float(total), **{kind: round(counts[kind] / total, 5) for kind in CLASSES}}


def _instructions(text: str, dialect: Assembly) -> Iterator[tuple[str, str]]:
    line, padding = re.compile(dialect.line), re.compile(dialect.padding)
    code = ours = True
    for row in text.splitlines():
        if section := _SECTION.match(row):
            code = section[1].startswith(".text")
        elif function := _FUNCTION.match(row):
            ours = function[1] not in _STARTUP
        elif code and ours and (match := line.match(row) or _UNKNOWN.match(row)) and not padding.fullmatch(match[1]):
            yield match[1], match[2].strip()


def _kind(dialect: Assembly, name: str, operands: str) -> str:
    if not name[0].isalpha():
        return _STRANGE
    for rule in dialect.rules:
        if re.fullmatch(rule.names, name) and (not rule.operands or re.fullmatch(rule.operands, operands)):
            return rule.kind
    return "other"

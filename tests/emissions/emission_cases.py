"""What is emitted and compared: families of kernels, operators and targets, each with a few configs.

The same on every machine: CPUs have fixed facts here, and drawn configs are recorded in the lists.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.operators import Operator
from deepgen.operators.expr.operator import as_operator
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel
from deepgen.vocabulary.finding import module_at
from deepgen.vocabulary.kernel import from_flags
from deepgen_triton_cpu.lowering import RELEASE, lower, ttir_of
from deepgen_triton_cpu.lowering.lower import flags as lowered_flags
from deepgen_triton_cpu.lowering.lower import sources as lowered_sources

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RENAMES: dict[str, Any] = json.loads((HERE / "renames.json").read_text())
# Family names for kernels without a named family: user kernels, and files of an older tool.
OWN, TRITON, TRITON_C, OLDER = "own kernel", "own Triton kernel", "Triton IR to C", "legacy_simt"
BUILT_IN: tuple[str, ...] = (*generators.FAMILIES.own, "vta")  # one is our own plug-in
# The release of Triton, its digest of a kernel, and a digest of the Python text that lowers it are not emissions.
_NOT_EMITTED = ("--triton=", "--key=", "--lowering=")
_DRAWN = "drawn "

X86 = ("x86:avx2", "x86:avx2_vnni", "x86:avx512", "x86:avx512_vnni", "x86:avx512_bf16", "x86:amx")
ARM = ("arm:neon", "arm:neon_dot")
RISCV = ("riscv:rv64gcv_zvl128b", "riscv:rv64gcv_zvl256b", "riscv:rv64gcv_zvl128b_zvfh")
CUDA = ("cuda:sm_70", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_120")
HIP = ("hip:gfx906", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")

GEMMS = (
    "gemm M=64 N=64 K=64",
    "gemm M=33 N=65 K=17 layout=nt",
    "gemm M=1 N=512 K=300 layout=tt",
    "gemm M=128 N=96 K=64 layout=tn",
    "gemm M=512 N=512 K=512 epilogue=bias,relu",
    "gemm M=40 N=72 K=56 B=3 layout=nt epilogue=gelu",
    "gemm M=48 N=80 K=100 dtype=f64",
    "gemm M=256 N=192 K=128 dtype=f64 layout=nt epilogue=bias",
    "gemm M=256 N=256 K=256 dtype=tf32 layout=nt",
    "gemm M=128 N=256 K=192 dtype=f16",
    "gemm M=96 N=128 K=64 dtype=f16 layout=nt epilogue=bias,silu",
    "gemm M=48 N=80 K=100 dtype=bf16 layout=nt",
    "gemm M=1024 N=1024 K=1024 dtype=bf16 layout=nt",
    "gemm M=16 N=4096 K=4096 dtype=bf16 layout=nt",
    "gemm M=1024 N=3 K=512 dtype=bf16 layout=nt",
    "gemm M=256 N=128 K=64 B=2 dtype=bf16 layout=tn epilogue=bias",
    "gemm M=48 N=80 K=100 dtype=i8",
    "gemm M=512 N=512 K=1024 dtype=i8 layout=nt",
    "gemm M=4 N=1024 K=1024 dtype=i8 layout=nt",
    "gemm M=64 N=128 K=256 dtype=u8 layout=nt",
    "gemm M=256 N=256 K=512 dtype=f8e4m3 layout=nt",
    "gemm M=256 N=320 K=1000 dtype=f8e4m3 layout=nt scales=1x128,128x128",
    "gemm M=256 N=320 K=512 dtype=f8e4m3 layout=nt scales=128x128,128x128 epilogue=bias",
    "gemm M=256 N=320 K=512 dtype=f8e4m3 layout=nt scales=1x128,1x128",
    "gemm M=128 N=128 K=256 dtype=f8e5m2 layout=nt fast_sums=true",
    "gemm M=64 N=96 K=128 layout=nt alpha=0.5 beta=2.0",
    "gemm M=64 N=96 K=128 dtype=i8 layout=nt c=bf16 scales=column",
)
FOUR_BITS = (
    "gemm_w4 M=16 N=4096 K=4096 weight_layout=packed",
    "gemm_w4 M=40 N=100 K=330 G=32 dtype=f16 zeros=true weight_layout=packed",
)
WITH_TEXTS = (  # of what follows the product
    "gemm M=40 N=72 K=56 B=3 layout=nt epilogue=gelu(x+bias[n])*up[m,n]",
    "gemm M=512 N=384 K=256 dtype=bf16 layout=nt epilogue=silu(x*scale[m]+bias[n])*f32(up[m,n])-s[0]",
    "gemm M=16 N=4096 K=4096 dtype=f16 layout=nt epilogue=gelu_tanh(x+bias[n])+residual[m,n]",
)
CONVOLUTIONS = (
    "c2d N=2 H=13 W=17 CI=5 CO=19 k=3 stride=2 pad=1",
    "c2d N=1 H=28 W=28 CI=32 CO=64 k=1 dtype=i8 layout=nchw",
    "c2d N=1 H=14 W=14 CI=16 CO=32 k=3 pad=1 dtype=f16",
    "c2d N=1 H=12 W=10 CI=8 CO=16 k=5 pad=2 layout=nchw",
    "c2d N=2 H=9 W=9 CI=12 CO=8 k=3 dtype=bf16 layout=nchw",
    "c2d N=1 H=8 W=8 CI=6 CO=10 k=3 pad=1 dtype=f64",
)
FEW_CHANNELS = (
    "c2d N=2 H=30 W=41 CI=3 CO=64 k=7 stride=2 pad=3 dtype=f16",
    "c2d N=1 H=17 W=20 CI=3 CO=19 k=3 stride=2 dtype=bf16 layout=nchw",
    "dil N=1 H=17 W=20 CI=1 CO=24 k=5 pad=2 dilation=1 dtype=f16 epilogue=bias,residual,relu",
)
ATTENTIONS = (
    "attention B=1 H=2 S=197 D=64 dtype=f16",
    "attention B=2 H=4 HK=2 SQ=100 SK=300 D=128 causal=true",
    "attention B=1 H=2 S=512 D=128 layout=bshd window=100 softcap=30.0",
    "attention B=2 H=8 HK=2 SQ=1 SK=1000 D=128",
)
BACKWARD = (
    "attention_backward B=1 H=2 S=512 D=128 layout=bshd window=100 softcap=30.0",
    "attention_backward B=2 H=4 HK=2 SQ=100 SK=300 D=64 causal=true",
)
EIGHT_BITS = (
    "attention B=2 H=4 HK=2 SQ=100 SK=300 D=128 dtype=f8e4m3 causal=true scales=true",
    "attention B=2 H=2 S=3000 D=128 dtype=f8e4m3",
)
F32_ATTENTIONS = (
    "attention B=1 H=2 S=256 D=512 dtype=f32",
    "attention B=3 H=4 HK=2 SQ=100 SK=300 D=33 dtype=f32 layout=bshd causal=true softcap=30.0 bias=true alibi=true",
)
LENGTHS = (
    "attention B=3 H=4 HK=2 SQ=100 SK=300 D=64 causal=true lengths=true",
    "attention B=3 H=8 HK=2 SQ=1 SK=1000 D=128 lengths=true",
    "attention B=2 H=8 HK=2 SQ=1 SK=1000 D=128 dtype=f32 lengths=true page=16",
    "attention B=2 H=8 HK=2 SQ=1 SK=1000 D=128 lengths=true page=64",
)
GROUPED = (
    "grouped_gemm E=5 M=300 N=100 K=64 dtype=f32",
    "grouped_gemm E=3 M=48 N=64 K=300 dtype=f32 layout=tn",
    "grouped_gemm E=8 M=4096 N=4096 K=2048",
    "grouped_gemm E=8 M=1024 N=512 K=768 dtype=f16 layout=nn",
    "grouped_gemm E=4 M=512 N=1024 K=2000 layout=tn",
    "grouped_gemm E=16 M=777 N=512 K=1024 dtype=f8e4m3 scales=column",
)
SOFTMAXES = (
    "softmax rows=9 cols=37",
    "softmax rows=512 cols=4096 dtype=bf16",
    "softmax rows=64 cols=1000 dtype=f16",
    "softmax rows=5 cols=70000",
    "softmax rows=33 cols=256 dtype=f64",
)
NAMED = (
    "bmm B=3 M=20 N=17 K=33 dtype=f16 epilogue=bias,relu",
    "bmm B=2 M=64 N=64 K=64 layout=nn",
    "gemv M=50 K=333",
    "gemv M=64 K=512 dtype=bf16 epilogue=bias",
    "c1d N=2 L=30 CI=5 CO=7 k=3 pad=4 layout=ncl",
    "c3d N=1 D=4 H=6 W=7 CI=3 CO=5 k=3 stride=2 pad=1",
    "dil N=1 H=9 W=8 CI=4 CO=6 k=3 pad=2 groups=2 dtype=i8",
    "dep N=2 H=9 W=8 C=7 k=3 pad=1 epilogue=bias,residual,silu",
    "t2d N=1 H=5 W=6 CI=3 CO=4 k=3 stride=2 pad=1 out_pad=1 dtype=f64",
    "scan M=4 N=9 K=30 axis=1 dtype=bf16",
    "scan M=3 N=5 K=700",
    "mean rows=9 cols=300 dtype=f16",
    "var rows=9 cols=300",
    "layer_norm rows=9 cols=70 dtype=bf16",
    "layer_norm rows=16 cols=512",
    "rms_norm rows=9 cols=70 dtype=f64",
    "elementwise rows=9 cols=70 epilogue=bias,gelu,residual",
    "elementwise rows=8 cols=64 dtype=f16",
)
CHANNELS_FIRST = (
    "conv1d N=2 L=30 CI=5 CO=8 k=3 pad=4 layout=ncl",
    "dilated_conv2d N=2 H=20 W=23 CI=16 CO=24 k=3x5 pad=1x2 groups=2 layout=nchw epilogue=bias,relu",
    "conv_transpose2d N=2 H=9 W=11 CI=16 CO=20 k=3 stride=2 pad=1 out_pad=1 layout=nchw",
    "conv_transpose3d N=1 D=4 H=5 W=6 CI=8 CO=16 k=3 stride=2 layout=ncdhw epilogue=bias",
)
POINTWISE = (
    "conv2d N=3 H=14 W=12 CI=64 CO=96 k=1 dtype=f16 layout=nchw",
    "conv2d N=2 H=9 W=7 CI=21 CO=19 k=1 dtype=bf16 layout=nchw",
    "conv2d N=2 H=9 W=7 CI=197 CO=23 k=1 dtype=f16",
    "dilated_conv2d N=2 H=9 W=7 CI=24 CO=40 k=1 dtype=bf16 epilogue=bias,silu",
)
EXPRESSED = (
    "expression projections",
    "expression pool",
    "expression total",
    "expression norm",
    "expression i8 product",
)
BY_RULES = (
    "gemm M=64 N=64 K=64",
    "gemm M=33 N=65 K=17 layout=nt",
    "gemm M=128 N=128 K=128 dtype=bf16 layout=nt",
    "gemm M=128 N=64 K=128 dtype=f16",
    "gemm M=64 N=64 K=128 dtype=i8 layout=nt",
    "gemm M=48 N=80 K=100 dtype=f64 epilogue=bias,relu",
    *CONVOLUTIONS[:3],
    *SOFTMAXES[:2],
    *NAMED,
    *EXPRESSED,
)


@dataclass(frozen=True)
class Case:
    """One family, operator and target: the default config and a number of drawn ones."""

    family: str
    operator: str
    target: str
    drawn: int

    @property
    def name(self) -> str:
        return f"{self.operator} on {self.target}"


@dataclass(frozen=True)
class Emission:
    """One kernel as plain data, and its config."""

    place: str  # default, or a drawn config as text
    config: Mapping[str, Any]
    content: Mapping[str, Any]


def _crossed(family: str, operators: Sequence[str], places: Sequence[str], drawn: int) -> Iterator[Case]:
    for operator, place in product(operators, places):
        yield Case(family, operator, place, drawn)


@cache
def cases() -> tuple[Case, ...]:
    """All candidates in a fixed order; those that a family does not support are dropped later."""
    on_rules = (
        "x86:avx2",
        "x86:avx512",
        "x86:amx",
        "arm:neon_dot",
        RISCV[1],
        "cuda:sm_80",
        "cuda:sm_90a",
        "hip:gfx90a",
    )
    weighted = (*GEMMS[:2], GEMMS[11], GEMMS[16], *CONVOLUTIONS[:2], *NAMED[:1], *NAMED[4:9])
    older = tuple(sorted(path.name for path in (ROOT / "data/deepgen/TuningConfigs").glob("GEMM_c*.json")))
    in_triton = tuple(sorted(path.stem for path in (ROOT / "examples/triton").glob("*.py")))
    return (
        *_crossed("x86_gemm", GEMMS, X86[::2], 7),
        *_crossed("x86_gemm_constant_b", GEMMS, X86[::2], 5),
        *_crossed("x86_amx_gemm", GEMMS, X86, 12),
        *_crossed("x86_vector_dot_gemm", GEMMS, X86, 5),
        *_crossed("x86_amx_gemm_constant_b", GEMMS, X86, 8),
        *_crossed("rvv_gemm", GEMMS, RISCV, 5),
        *_crossed("c_gemm", (*GEMMS, *WITH_TEXTS), (X86[0], *ARM, RISCV[1]), 5),
        *_crossed("c_scaled_gemm", GEMMS, (X86[0], X86[2], ARM[0], RISCV[1]), 5),
        *_crossed("sm90_gemm", (*GEMMS, *WITH_TEXTS), CUDA, 15),
        *_crossed("mma_gemm_w4", FOUR_BITS, CUDA[1:3], 6),
        *_crossed("skinny_gemm", (*GEMMS, *WITH_TEXTS), (*CUDA, *HIP), 6),
        *_crossed("mma_gemm", (*GEMMS, *WITH_TEXTS), (*CUDA, *HIP), 5),
        *_crossed(
            "simt_gemm", (*GEMMS, "expression triangle"), ("cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:gfx942"), 4
        ),
        *_crossed("c_softmax", SOFTMAXES, ("x86:avx2", "x86:avx512", *ARM, RISCV[1]), 6),
        *_crossed("simt_softmax", SOFTMAXES, ("cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:gfx1100"), 8),
        *_crossed("c_conv2d", CONVOLUTIONS, ("x86:avx2", "x86:avx512", *ARM, RISCV[1]), 6),
        *_crossed("sm90_conv", CONVOLUTIONS, CUDA[2:3], 15),
        *_crossed("simt_conv2d", CONVOLUTIONS, ("cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:gfx1100"), 6),
        *_crossed("simt_conv", (*CONVOLUTIONS, *CHANNELS_FIRST), ("cuda:sm_80", "cuda:sm_90a", "hip:gfx1100"), 4),
        *_crossed("sm90_attention", ATTENTIONS, CUDA[2:3], 6),
        *_crossed("sm90_attention", EIGHT_BITS, CUDA[2:3], 4),
        *_crossed("simt_attention", F32_ATTENTIONS, ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942"), 4),
        *_crossed("c_attention", (*ATTENTIONS[1:3], *LENGTHS[:1]), ("x86:avx2", "x86:avx512", *ARM), 4),
        *_crossed("x86_amx_attention", ATTENTIONS[1:], X86[-2:], 6),
        *_crossed("c_decode", (*ATTENTIONS[-1:], *LENGTHS[1:]), ("x86:avx2", "x86:avx512", *ARM), 4),
        *_crossed("mma_decode", (*ATTENTIONS[-1:], *LENGTHS[1:]), CUDA[1:3], 6),
        *_crossed("c_grouped", GROUPED[:2], ("x86:avx512", *ARM[:1], RISCV[1]), 4),
        *_crossed("x86_grouped", GROUPED, X86[::2], 3),
        *_crossed("sm90_grouped", GROUPED, CUDA[2:3], 12),
        *_crossed("mma_grouped", GROUPED, CUDA[1:3], 5),
        *_crossed("c_backward", BACKWARD, ("x86:avx2", *ARM), 2),
        *_crossed("mma_backward", BACKWARD, CUDA[1:3], 6),
        *_crossed("sm90_backward", BACKWARD, CUDA[2:3], 6),
        *_crossed("mma_conv_few", (*CONVOLUTIONS, *FEW_CHANNELS), CUDA[1:3], 4),
        *_crossed("sm90_conv_copied", (*CONVOLUTIONS, *FEW_CHANNELS), CUDA[2:3], 4),
        *(case for n in ("sm90", "mma", "simt") for case in _crossed(f"{n}_pointwise", POINTWISE, CUDA[1:3], 4)),
        *_crossed("rules", BY_RULES, on_rules, 2),
        *_crossed("rules_constant_weights", weighted, ("x86:avx512", "arm:neon_dot"), 1),
        *_crossed("vta", (*BY_RULES, GEMMS[16], GEMMS[17]), ("vta",), 12),
        *_crossed("sim_tiles", (*GEMMS[::3], *CONVOLUTIONS[::2], *SOFTMAXES[::2], *NAMED[::3]), ("sim",), 3),
        *_crossed(OLDER, older, ("cuda:sm_80", "hip:gfx906"), 8),
        *_crossed(OWN, ("kernels/jacobi_c.py",), ("x86:avx2", "arm:neon"), 6),
        *_crossed(OWN, ("kernels/vadd_cuda.py",), CUDA[1:3], 6),
        *_crossed(OWN, ("kernels/vadd_hip.py",), HIP[1:3], 6),
        *_crossed(TRITON, in_triton, ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "x86:avx512", "arm:neon"), 3),
        *_crossed(TRITON_C, in_triton, ("x86:avx512",), 2),
    )


def lacks(case: Case) -> str | None:
    """The missing requirement of a case, in words; None if everything is installed."""
    if case.family not in (TRITON, TRITON_C):
        return None
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    import triton

    release: str = triton.__version__
    return None if release.startswith(f"{RELEASE}.") else f"Triton {release} is installed, not {RELEASE}"


@cache
def target_of(name: str) -> Target:
    """The target with the same cores and caches on every machine: otherwise CPUs would take facts from this machine."""
    target = targets.resolve(name)
    if not isinstance(target, Cpu):
        return target
    return replace(target, model="a processor", cores=8, l1d_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)


def served(case: Case) -> tuple[Generator, Operator, Target] | None:
    """The family and the operator of a case; None if the family does not support it."""
    target = target_of(case.target)
    if case.family == OLDER:
        data = json.loads((ROOT / "data/deepgen/TuningConfigs" / case.operator).read_text())
        older: Any = generators.by_name(OLDER, {"data": data, "strategy": 1})
        family, operator = older, older.operator
    elif case.family in (OWN, TRITON, TRITON_C):
        own = _example(case)
        family, operator = own.family, own.operator()
    else:
        family = generators.by_name(RENAMES["families"].get(case.family, case.family))
        operator = operator_of(case.operator)
    return None if family.refuses(operator, target) is not None else (family, operator, target)


def _example(case: Case) -> Any:
    if case.family in (TRITON, TRITON_C):
        return module_at(ROOT / "examples/triton" / f"{case.operator}.py").kernel
    # Executed anew: a copy of the same text in a study's folder may already be a module, without its sources.
    return runpy.run_path(str(ROOT / "examples" / case.operator))["kernel"]


def default(case: Case) -> Emission | None:
    """The kernel of the default config, without a space; None if the family does not support the case."""
    if (parts := served(case)) is None:
        return None
    family, operator, target = parts
    return _emitted(case, parts, "default", family.default(operator, target))


def emissions(case: Case, listed: Sequence[str] = ()) -> tuple[Mapping[str, Any], list[Emission]] | None:
    """The space's definition and all kernels of a case; None if the family does not support it.

    Configs are those of the listed indices, without those no longer in the space; if none are listed, they are drawn.
    Ranks are not reused: they depend on the order of knobs, which may change with another release of Python or numpy.
    """
    if (parts := served(case)) is None:
        return None
    family, operator, target = parts
    space = family.space(operator, target)
    configs: Sequence[Mapping[str, Any]]
    if listed:
        configs = [config for place in listed if (config := _config(space, place)) is not None]
    else:
        numbers = [_number(f"{case.family} {case.name} {place}") for place in range(case.drawn)]
        exact = space.size().exact
        configs = (
            [space.at(number % space.count()) for number in numbers] if exact else space.sample(case.drawn, seed=1)
        )
    chosen: dict[str, Mapping[str, Any]] = {"default": family.default(operator, target)}
    chosen |= {_place(space, config): config for config in configs}
    definition = {key: value for key, value in space.to_json().items() if key != "fingerprint"}
    return definition, [_emitted(case, parts, place, config) for place, config in chosen.items()]


def _place(space: dg.Space, config: Mapping[str, Any]) -> str:
    """A config as text: for each knob the index of its value among the knob's values, or - if it has none."""
    spelled = [[(type(value), value) for value in knob.values] for knob in space.knobs]
    pairs = zip(space.knobs, spelled, strict=True)
    return _DRAWN + ".".join(
        str(values.index((type(config[knob.name]), config[knob.name]))) if knob.name in config else "-"
        for knob, values in pairs
    )


def _config(space: dg.Space, place: str) -> Mapping[str, Any] | None:
    """The config for such a text; None if the space does not contain it."""
    words = place.removeprefix(_DRAWN).split(".")
    if len(words) != len(space.knobs):
        return None
    pairs = [(knob, int(word)) for knob, word in zip(space.knobs, words, strict=True) if word != "-"]
    if any(number >= len(knob.values) for knob, number in pairs):
        return None
    config = {knob.name: knob.values[number] for knob, number in pairs}
    return config if space.contains(config) else None


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def _emitted(case: Case, parts: tuple[Generator, Operator, Target], place: str, config: Mapping[str, Any]) -> Emission:
    family, operator, target = parts
    kernel = family.emit(operator, target, config)
    content = _lowered(case, kernel) if case.family == TRITON_C else kernel.to_json()
    kept = [flag for flag in kernel.flags if not flag.startswith(_NOT_EMITTED)]
    return Emission(place, config, content if case.family == TRITON_C else {**content, "flags": kept})


def _lowered(case: Case, kernel: Kernel) -> Mapping[str, Any]:
    """The result of a build of a Triton kernel for a CPU, with Triton's front end."""
    unit = from_flags(kernel.flags)
    function = getattr(module_at(ROOT / "examples/triton" / f"{case.operator}.py"), unit.entry)
    types = {name: unit.parameters[name][0] if name in unit.parameters else "constexpr" for name in function.arg_names}
    made_c = lower(ttir_of(function, types, unit.constants, {}))
    files = lowered_sources(made_c.text, made_c.name)
    return {
        "sources": [{"name": file.name, "text": file.text} for file in files],
        "flags": list(lowered_flags()),
        "parameters": list(made_c.parameters),
        "scratch": made_c.scratch,
    }


@cache
def operator_of(text: str) -> Operator:
    """`gemm M=64 dtype=f16`: an operator's name and its parameters; `expression NAME`: one of those below."""
    name, *words = text.split()
    if name == "expression":
        expressed: Operator = as_operator(_EXPRESSIONS[text.partition(" ")[2]]())
        return expressed
    pairs = (word.partition("=") for word in words)
    return dg.operator(RENAMES["operators"].get(name, name), **{word: _value(value) for word, _, value in pairs})


def _value(text: str) -> bool | int | float | str:
    if text == "true":
        return True
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _projections() -> Any:
    """Two products with a shared matrix."""
    x, k = dg.tensor("x", (32, 48)), dg.reduce_axis("k", 48)
    left, right = dg.tensor("left", (48, 16)), dg.tensor("right", (48, 24))
    first = dg.compute("first", (32, 16), lambda i, j: dg.sum(x[i, k] * left[k, j], k))
    return dg.expression(first, dg.compute("second", (32, 24), lambda i, j: dg.sum(x[i, k] * right[k, j], k)))


def _pool() -> Any:
    x, r = dg.tensor("x", (9, 41), "i8"), dg.reduce_axis("r", 3)
    return dg.expression(dg.compute("y", (9, 20), lambda i, j: dg.max(x[i, 2 * j + r], r)))


def _total() -> Any:
    x, r, c = dg.tensor("x", (500, 7)), dg.reduce_axis("r", 500), dg.reduce_axis("c", 7)
    return dg.expression(dg.compute("y", (1,), lambda i: dg.sum(x[r, c], r, c)))


def _norm() -> Any:
    x, gain, r = dg.tensor("x", (20, 96)), dg.tensor("gain", (96,)), dg.reduce_axis("r", 96)
    mean = dg.compute("mean", (20,), lambda i: dg.sum(x[i, r], r) / 96)
    spread = dg.compute("spread", (20,), lambda i: dg.sum((x[i, r] - mean[i]) * (x[i, r] - mean[i]), r) / 96)
    return dg.expression(
        dg.compute("y", (20, 96), lambda i, j: (x[i, j] - mean[i]) * dg.rsqrt(spread[i] + 1e-5) * gain[j])
    )


def _product() -> Any:
    a, b, k = dg.tensor("A", (33, 70), "i8"), dg.tensor("B", (20, 70), "i8"), dg.reduce_axis("k", 70)
    return dg.expression(dg.compute("C", (33, 20), lambda i, j: dg.sum(a[i, k].cast("i32") * b[j, k].cast("i32"), k)))


def _triangle() -> Any:
    a, b, k = dg.tensor("A", (60, 40)), dg.tensor("B", (40, 48)), dg.reduce_axis("k", 40)
    product = dg.compute("product", (60, 48), lambda i, j: dg.sum(a[i, k] * b[k, j], k))
    return dg.expression(dg.compute("C", (60, 48), lambda i, j: dg.where(i <= j, product[i, j], 0.0)))


_EXPRESSIONS: Mapping[str, Callable[[], Any]] = {
    "projections": _projections, "pool": _pool, "total": _total, "norm": _norm, "i8 product": _product,
    "triangle": _triangle,
}  # fmt: skip

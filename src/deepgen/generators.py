"""Kernel families, and their order for an operator on a target: the first is the default.

If several support it, they compete in one study: its space is the union of theirs, with FAMILY as the first knob.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from deepgen.kernels import (
    BringsFamily,
    Compared,
    Generator,
    Rank,
    Ranked,
    check_addressable,
    rank_of,
    served_instead,
)
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Kernel
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.space import Space

_KERNELS = "deepgen.kernels"
# Among families of the same rank whose times cannot be compared, earlier ones are preferred. Plug-ins come last.
FAMILIES: Registry[Callable[[], Generator]] = Registry(
    "deepgen.generators",
    "kernel family",
    {
        "x86_gemm": f"{_KERNELS}.gemm.x86_gemm:X86Gemm",
        "x86_gemm_constant_b": f"{_KERNELS}.gemm.x86_gemm:X86GemmConstant",
        "x86_amx_gemm": f"{_KERNELS}.gemm.x86_amx_gemm:AmxGemm",
        "x86_vector_dot_gemm": f"{_KERNELS}.gemm.x86_dot:DotGemm",
        "x86_amx_gemm_constant_b": f"{_KERNELS}.gemm.x86_amx_gemm:AmxGemmConstant",
        "rvv_gemm": f"{_KERNELS}.gemm.rvv_gemm:RvvGemm",
        "c_gemm": f"{_KERNELS}.gemm.c_gemm:CGemm",
        "c_scaled_gemm": f"{_KERNELS}.gemm.c_gemm:CScaledGemm",
        "sm90_gemm": f"{_KERNELS}.gemm.sm90_gemm:Sm90Gemm",
        "skinny_gemm": f"{_KERNELS}.gemm.skinny_gemm:SkinnyGemm",
        "mma_gemm": f"{_KERNELS}.gemm.mma_gemm:MmaGemm",
        "simt_gemm": f"{_KERNELS}.gemm.simt_gemm:SimtGemm",
        "mma_gemm_w4": f"{_KERNELS}.gemm_w4.mma_gemm_w4:MmaGemmW4",
        "c_softmax": f"{_KERNELS}.softmax.c_softmax:CSoftmax",
        "simt_softmax": f"{_KERNELS}.softmax.simt_softmax:SimtSoftmax",
        "x86_amx_attention": f"{_KERNELS}.attention.x86_amx_attention:X86AmxAttention",
        "c_attention": f"{_KERNELS}.attention.c_attention:CAttention",
        "c_decode": f"{_KERNELS}.attention.c_attention:CDecode",
        "mma_decode": f"{_KERNELS}.attention.mma_decode:MmaDecode",
        "sm90_attention": f"{_KERNELS}.attention.sm90_attention:Sm90Attention",
        "c_backward": f"{_KERNELS}.attention.c_attention:CBackward",
        "sm90_backward": f"{_KERNELS}.attention.sm90_backward:Sm90Backward",
        "mma_backward": f"{_KERNELS}.attention.mma_backward:MmaBackward",
        "simt_attention": f"{_KERNELS}.attention.simt_attention:SimtAttention",
        "x86_grouped": f"{_KERNELS}.grouped_gemm.x86_grouped:X86Grouped",
        "c_grouped": f"{_KERNELS}.grouped_gemm.c_grouped:CGrouped",
        "sm90_grouped": f"{_KERNELS}.grouped_gemm.sm90_grouped:Sm90Grouped",
        "mma_grouped": f"{_KERNELS}.grouped_gemm.mma_grouped:MmaGrouped",
        "sm90_conv": f"{_KERNELS}.conv2d.sm90_conv:Sm90Conv",
        "sm90_conv_copied": f"{_KERNELS}.conv2d.sm90_conv_copied:Sm90ConvCopied",
        "sm90_pointwise": f"{_KERNELS}.conv2d.pointwise:Sm90Pointwise",
        "mma_pointwise": f"{_KERNELS}.conv2d.pointwise:MmaPointwise",
        "simt_pointwise": f"{_KERNELS}.conv2d.pointwise:SimtPointwise",
        "mma_conv_few": f"{_KERNELS}.conv2d.mma_conv_few:MmaConvFew",
        "simt_conv": f"{_KERNELS}.conv2d.simt_conv:SimtConv",
        "simt_conv2d": f"{_KERNELS}.conv2d.simt_conv2d:SimtConv2d",
        "rules": "deepgen.compiler.family:Rules",
        "c_conv2d": f"{_KERNELS}.conv2d.c_conv2d:CConv2d",
        "rules_constant_weights": "deepgen.compiler.family:RulesConstantWeights",
        "sim_tiles": "deepgen.kernels.sim:SimTiles",
    },
)
# Generators that are created from data, by the names that studies record.
RECIPES: Registry[Callable[[Mapping[str, Any]], Generator]] = Registry(
    "deepgen.recipes", "generator", {"own kernel": f"{_KERNELS}.own.triton_family:from_recipe"}
)

_OF_CPUS, _OF_GPUS = ("x86_", "rvv_", "c_"), ("sm90_", "skinny_", "mma_", "simt_")  # prefixes of family names
_NEVER = {"cpu": _OF_GPUS, "riscv": _OF_GPUS, "gpu": _OF_CPUS}  # by the runner of the target

RULED = ("rules", "rules_constant_weights")  # families whose kernels are built by schedule rules
RULE = "schedule rule "  # prefix of its name in a study's record of code
FAMILY = "FAMILY"  # the knob that names the family of a config
_JOIN = "+"
_GUESSES = 11  # configs ranked by models, tried after the defaults


class Families:
    """Several families of one operator combined: a config names its family, and its other knobs are that family's."""

    def __init__(self, members: Sequence[Generator]) -> None:
        self.members = {member.name: member for member in members}
        self.name = _JOIN.join(self.members)
        self._spaces: dict[tuple[Operator, Target], dict[str, Space]] = {}

    def refuses(self, operator: Operator, target: Target) -> str | None:
        """None if one of them supports the operator; the others then have no configs."""
        reasons = [member.refuses(operator, target) for member in self.members.values()]
        return None if None in reasons else reasons[0]

    def spaces(self, operator: Operator, target: Target) -> dict[str, Space]:
        """The spaces of those that support it, except one whose knobs have values of another type than earlier ones."""
        from deepgen.space.rows import join_kinds, kind_of_value

        if (operator, target) not in self._spaces:
            kinds: dict[str, str] = {}
            spaces: dict[str, Space] = {}
            for name, member in self.members.items():
                if member.refuses(operator, target) is None:
                    space = member.space(operator, target)
                    own = {knob.name: join_kinds([kind_of_value(v) for v in knob.values]) for knob in space.knobs}
                    if all(kinds.get(knob, kind) == kind for knob, kind in own.items()):
                        kinds |= own
                        spaces[name] = space
            self._spaces[operator, target] = spaces
        return self._spaces[operator, target]

    def space(self, operator: Operator, target: Target) -> Space:
        from deepgen.space import Space

        plain = {name: own.without_derived() for name, own in self.spaces(operator, target).items()}
        return Space.union(self.name, plain, by=FAMILY)

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        member, own = member_of(self, config)
        return member.emit(operator, target, own)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        name = next(iter(self.spaces(operator, target)))
        return {FAMILY: name, **self.members[name].default(operator, target)}

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """The default of every family that supports it, best first; then the configs they rank next."""
        serving = self.spaces(operator, target)
        for name in serving:
            yield {FAMILY: name, **self.members[name].default(operator, target)}
        for name in serving:
            if isinstance(member := self.members[name], Ranked):
                default = member.default(operator, target)
                yield from ({FAMILY: name, **one} for one in member.ranked(operator, target) if one != default)


def named_member(generator: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the family of a config, and the config in that family's own form."""
    if _JOIN not in generator:
        return generator, dict(config)
    if config.get(FAMILY) not in family_names(generator):
        raise BadInput(
            f"{FAMILY} is {config.get(FAMILY)!r:.60}", allowed="one of " + ", ".join(family_names(generator))
        )
    return config[FAMILY], {name: value for name, value in config.items() if name != FAMILY}


def member_of(generator: Generator, config: Mapping[str, Any]) -> tuple[Generator, dict[str, Any]]:
    """Like `named_member`, with the family itself."""
    name, own = named_member(generator.name, config)
    return generator.members[name] if isinstance(generator, Families) else generator, own


def best_guesses(generator: Generator, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
    """The first configs of a search: the default of every family, then those that its model ranks next."""
    if not isinstance(generator, Ranked):
        return iter([generator.default(operator, target)])
    defaults = len(generator.spaces(operator, target)) if isinstance(generator, Families) else 1
    return islice(generator.ranked(operator, target), defaults + _GUESSES)


def families(target: Target | None = None) -> tuple[Generator, ...]:
    """All generators, deepgen's own first. For a target, those of other devices are skipped and not imported."""
    never = () if target is None else _NEVER.get(target.runner, ())
    return tuple(make() for make in FAMILIES.working(without=never))


def find(operator: Operator, target: Target, family: str | None = None) -> Generator:
    """The generator for this operator and target, the best or the named one; an error gives the reason if none."""
    return serving(operator, target)[0] if family is None else serves(by_name(family), operator, target)


def serves(family: Generator, operator: Operator, target: Target) -> Generator:
    """The family itself. Raises BadInput if it does not support the operator there."""
    check_addressable(operator)
    if (reason := family.refuses(operator, target)) is not None:
        what = f"generator {family.name} does not support {operator.describe()} on {target.name}"
        raise BadInput(what, allowed=reason)
    return family


def on_threads(family: Generator, space: Space, most: int) -> dict[str, list[int]]:
    """The values of knobs that limit kernels to that many threads."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadInput(f"threads is {most!r}", allowed="an integer of at least 1")
    counts = next((knob.values for knob in space.knobs if knob.name == "THREADS"), ())
    fitting = [count for count in counts if isinstance(count, int) and count <= most]
    if not fitting:
        raise BadInput(f"threads is {most}", allowed=f"only for a CPU: {family.name} has no threads to count")
    return {"THREADS": fitting}


def serving(operator: Operator, target: Target) -> list[Generator]:
    """All generators for this operator on this target, the best first; raises an error with the reason if there is
    none.
    """
    if isinstance(operator, BringsFamily):
        return [serves(operator.family, operator, target)]
    candidates = families(target)
    check_addressable(operator)
    matches = [family for family in candidates if family.refuses(operator, target) is None]
    if not matches:
        instead = served_instead(operator, target, candidates)
        raise BadInput(f"no generator supports {operator.describe()} on {target.name}", allowed=instead)
    times = _expected(matches, operator, target)
    return sorted(matches, key=lambda family: (rank_of(family, operator, target), times.get(family.name, inf)))


def _expected(families: Sequence[Generator], operator: Operator, target: Target) -> dict[str, float]:
    """Modelled seconds of the defaults, for comparable families, except those that cannot be the fastest."""
    compared = [family for family in families if isinstance(family, Compared)]
    bounds = {family.name: family.least_seconds(operator, target) for family in compared if len(compared) > 1}
    times: dict[str, float] = {}
    for family in sorted(compared, key=lambda family: bounds.get(family.name, 0.0)) if bounds else ():
        if bounds[family.name] < min(times.values(), default=inf):
            seconds = family.modelled_seconds(operator, target, family.default(operator, target))
            times[family.name] = inf if seconds is None else seconds
    return times


def competing(operator: Operator, target: Target, knobs: Collection[str] = ()) -> Generator:
    """The generator that a study searches: the families that support the operator and have all of these knobs, combined
    if there are several.

    Families that are surpassed here, or that are only used by name, are left out.
    """
    every = serving(operator, target)
    able = [one for one in every if rank_of(one, operator, target) < Rank.SURPASSED]
    if len(able) < 2:
        return every[0]
    united = Families(able)
    spaces = united.spaces(operator, target)
    fitting = [one for one in able if one.name in spaces and {*knobs} <= {k.name for k in spaces[one.name].knobs}]
    if len(fitting) < 2:
        return fitting[0] if fitting else able[0]
    return united if len(fitting) == len(able) else Families(fitting)


def by_name(name: str, recipe: Mapping[str, Any] | None = None, rules: Sequence[Any] = ()) -> Generator:
    """The generator of a study; `recipe` is what the study recorded of one that is created from data.

    `rules` are the user's own schedule rules, for a family that supports them.
    """
    if recipe is not None and name in RECIPES:
        return RECIPES.get(name)(recipe)
    if rules:
        if name not in RULED:
            raise BadInput(f"family {name} is given with schedule rules", allowed=" or ".join(RULED))
        make: Any = FAMILIES.get(name)
        ruled: Generator = make(rules)
        return ruled
    parts = family_names(name)
    return FAMILIES.get(name)() if len(parts) == 1 else Families([by_name(part) for part in parts])


def ruled(name: str, classes: Sequence[Callable[[], Any]], recorded: Sequence[Any], where: str) -> Generator:
    """The family of a study, with its rules recreated; `recorded` is what the study recorded of them."""
    family: Generator | None = None
    with suppress(TypeError):  # for a rule that needs arguments
        family = by_name(name, rules=[make() for make in classes])
    if family is None or getattr(family, "asks", None) != recorded:
        what = f"{where} was tuned with schedule rules that cannot be recreated from here"
        raise BadInput(what, allowed="from Python: dg.Study.open(folder, generator=deepgen.extend.Rules([...]))")
    return family


def family_names(name: str) -> list[str]:
    """The names of the families of a study's generator."""
    return list(dict.fromkeys(name.split(_JOIN)))


__all__ = [
    "FAMILIES",
    "FAMILY",
    "RECIPES",
    "Families",
    "Generator",
    "best_guesses",
    "by_name",
    "competing",
    "families",
    "family_names",
    "find",
    "member_of",
    "named_member",
    "on_threads",
    "ruled",
    "serves",
    "serving",
]

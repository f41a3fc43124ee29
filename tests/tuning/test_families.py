"""Families that serve the same operator compete in one study: one identity, one resume, one result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen import generators
from deepgen.generators import FAMILY, Families
from deepgen.libraries.adding import entry_of
from deepgen.targets import resolve
from deepgen.tuning import search
from deepgen.tuning.request import Request, StudyPlan, plan
from deepgen.tuning.search.portfolio import Portfolio
from deepgen.vocabulary import BadInput, Measurement, Trial, Verdict

SOFTMAX = dg.softmax(8, 100)
OPERATORS = {
    "f32": dg.gemm(96, 80, 64),
    "bf16": dg.gemm(96, 80, 64, dtype="bf16", layout="nt"),
    "softmax": dg.softmax(64, 100),
    "conv2d": dg.conv2d(1, 14, 14, 8, 8, 3),
}


def planned(**changes: Any) -> StudyPlan:
    return plan(Request(SOFTMAX, resolve("cpu"), **changes))


def test_best_guesses_come_first_that_of_the_best_family_before_all() -> None:
    plan = planned()
    assert isinstance(plan.generator, Families)
    assert plan.generator.name == "c_softmax+rules"
    assert [config[FAMILY] for config in plan.starts] == ["c_softmax", "rules"]
    assert plan.first == plan.space.rank(dict(plan.starts[0]))
    assert plan.space.ranks == sum(space.ranks for space in plan.members.values())


@pytest.mark.parametrize("target", ["cpu", "x86:avx512", "x86:amx", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_config_of_the_union_is_one_of_a_family(name: str, target: str) -> None:
    operator = OPERATORS[name]
    generator = generators.competing(operator, resolve(target))
    if not isinstance(generator, Families):
        return
    united = generator.space(operator, resolve(target))
    for family, space in generator.spaces(operator, resolve(target)).items():
        for own in space.sample(5, 0):
            config = {FAMILY: family, **own}
            again = united.at(united.rank(config))
            assert again == config
            assert all(type(again[knob]) is type(value) for knob, value in config.items())
            alone = generators.by_name(family).emit(operator, resolve(target), own)
            assert generator.emit(operator, resolve(target), config).id == alone.id


def test_what_takes_inputs_to_be_constant_competes_only_by_name() -> None:
    every = {name for target in ("x86:amx", "cpu") for name in names(dg.gemm(96, 80, 64), target)}
    every |= set(names(dg.conv2d(1, 14, 14, 8, 8, 3), "cpu"))
    assert not [name for name in every if "constant" in name]


def names(operator: dg.Operator, target: str) -> list[str]:
    return generators.family_names(generators.competing(operator, resolve(target)).name)


def test_a_knob_of_one_family_leaves_only_those_that_have_it() -> None:
    knob = next(k for k in planned().members["c_softmax"].knobs if k.name != "THREADS")
    alone = planned(domains={knob.name: [knob.values[0]]})
    assert alone.generator.name == "c_softmax"
    assert FAMILY not in alone.starts[0]


def test_a_family_by_name_or_several() -> None:
    assert planned(generator=generators.by_name("rules")).generator.name == "rules"
    both = generators.by_name("rules+c_softmax")
    assert [config[FAMILY] for config in planned(generator=both).starts] == ["rules", "c_softmax"]
    with pytest.raises(BadInput, match="nothing"):
        generators.by_name("rules+nothing")


def searched(seconds: Mapping[str, float], trials: int = 120, batch: int = 4) -> tuple[StudyPlan, list[Trial]]:
    """A search in which every kernel of a family takes about this many seconds; zero means that it fails."""
    plan = planned()
    strategy = portfolio(plan)
    heard: list[Trial] = []
    while len(heard) < trials and (configs := strategy.ask(batch)):
        for config in configs:
            heard.append(trial(plan, len(heard), config, seconds))
            strategy.tell(heard[-1])
    return plan, heard


def portfolio(plan: StudyPlan) -> Portfolio:
    made = search.make("model", search.Setting(plan.space, 0, plan.starts, {}, (), plan.members))
    assert isinstance(made, Portfolio)
    return made


def trial(plan: StudyPlan, number: int, config: Mapping[str, Any], seconds: Mapping[str, float]) -> Trial:
    rank = plan.space.rank(config)
    taken = seconds[config[FAMILY]] * (1 + rank % 7 / 100)
    measured = Measurement(Verdict.CORRECT, samples=(taken,)) if taken else Measurement(Verdict.WRONG, "wrong")
    return Trial(number, rank, config, "", measured)


def test_trials_go_to_the_family_whose_kernels_are_fast() -> None:
    _, heard = searched({"c_softmax": 4e-3, "rules": 1e-3})
    counts = Counter(t.config[FAMILY] for t in heard)
    assert counts["rules"] > 8 * counts["c_softmax"] > 0
    assert len({t.rank for t in heard}) == len(heard)


def test_a_family_without_a_right_kernel_gets_few_trials() -> None:
    _, heard = searched({"c_softmax": 0.0, "rules": 1e-3})
    assert Counter(t.config[FAMILY] for t in heard)["c_softmax"] <= 6


def test_an_exhausted_family_leaves_its_trials_to_the_other() -> None:
    plan, heard = searched({"c_softmax": 1e-3, "rules": 2e-3})
    counts = Counter(t.config[FAMILY] for t in heard)
    assert counts["c_softmax"] == plan.members["c_softmax"].ranks
    assert counts["rules"] == len(heard) - counts["c_softmax"]


def test_a_restored_search_goes_on_as_the_first_one_would_have() -> None:
    times = {"c_softmax": 1.5e-3, "rules": 1e-3}
    plan, heard = searched(times, 48)
    first, second = portfolio(plan), portfolio(plan)
    for start in range(0, 48, 4):
        assert [plan.space.rank(c) for c in first.ask(4)] == [t.rank for t in heard[start : start + 4]]
        for one in heard[start : start + 4]:
            first.tell(one)
    state = first.state()
    assert state is not None
    second.restore(json.loads(json.dumps(state)), [t.rank for t in heard], heard)
    for number in range(48, 72, 4):
        configs = first.ask(4)
        assert configs == second.ask(4)
        for place, config in enumerate(configs):
            one = trial(plan, number + place, config, times)
            first.tell(one)
            second.tell(one)


@pytest.mark.parametrize("state", [{}, {"parts": {"rules": {}}, "exhausted": []}, {"parts": 1, "exhausted": []}])
def test_a_state_of_other_families_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="state"):
        portfolio(planned()).restore(state, [], [])


@pytest.mark.slow
def test_one_study_one_resume_one_result(tmp_path: Path) -> None:
    study = dg.tune(SOFTMAX, target="cpu", trials=4, out=tmp_path, baselines=False)
    again = dg.tune(SOFTMAX, target="cpu", trials=6, out=tmp_path, baselines=False)
    assert again.folder == study.folder
    trials = again.trials()
    assert len(trials) == 6
    assert {t.config[FAMILY] for t in trials[:2]} == {"c_softmax", "rules"}
    best = again.best().trial
    assert again.summary()["winner"]["config"][FAMILY] == best.config[FAMILY]
    entry, kernel, _ = entry_of(again)
    assert entry.family == best.config[FAMILY]
    assert FAMILY not in entry.config
    assert kernel.id == generators.by_name(entry.family).emit(SOFTMAX, again.target, entry.config).id
    assert dg.Study.open(again.folder).generator.name == "c_softmax+rules"


@pytest.mark.parametrize("target", ["x86:avx512", "cuda:sm_90a"])
def test_families_of_other_devices_are_not_imported_and_would_all_refuse(target: str) -> None:
    """This saves tenths of a second before the first kernel is built."""
    device = resolve(target)
    asked = {family.name for family in generators.families(device)}
    others = [family for family in generators.families() if family.name not in asked]
    assert others and "rules" in asked
    attention = dg.operator("attention", B=1, H=2, S=8, D=16)
    operators = dg.gemm(64, 64, 64), dg.conv2d(1, 8, 8, 8, 8, 3), dg.softmax(8, 8), attention
    for family in others:
        assert all(family.refuses(operator, device) for operator in operators), family.name

"""The model saves work: it loads nothing before it is needed, and shortcuts change no proposal."""

from __future__ import annotations

import pytest

from deepgen.space import Space, parse
from deepgen.tuning import search
from deepgen.tuning.search import Past, Setting, guide
from deepgen.tuning.search.encoding import Encoding
from deepgen.tuning.search.model import Model
from deepgen.tuning.search.one_thread import _functions, one_thread
from deepgen.tuning.search.recorded import RecordedSpace
from deepgen.vocabulary import Trial


def made_of(setting: Setting) -> Model:
    strategy = search.make("model", setting)
    assert isinstance(strategy, Model)
    return strategy


def test_the_first_config_waits_for_no_model_and_no_earlier_study(
    recorded: RecordedSpace, partner: RecordedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = recorded.space.at(3)
    past = Past("earlier", partner.space, partner.past.trials)
    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "__init__", lambda *_: pytest.fail("encoded too early"))
        strategy = made_of(Setting(recorded.space, 0, (start,), history=[past]))
        assert strategy.learned_from == ["earlier"]
        assert strategy.ask(1) == [start]
    assert len(strategy.ask(4)) == 4


@pytest.mark.parametrize("most", [1, 5])
def test_a_batch_among_few_configs_is_the_batch_among_all(
    recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However few candidates are scored first: the others follow if one of them could be better."""
    batches = []
    for short in (most, 10**9):
        monkeypatch.setattr(guide, "_SHORT", short)
        strategy, asked, number = made_of(Setting(recorded.space, 0)), [], 0
        for _ in range(8):
            fresh = strategy.ask(6)
            asked += fresh
            for config in asked[number : number + 4]:  # some stay pending
                strategy.tell(Trial(number, recorded.space.rank(config), config, "", recorded.measure(config)))
                number += 1
        batches.append(asked)
    assert batches[0] == batches[1]


def test_derived_values_of_many_configs_are_those_of_each() -> None:
    space = Space("holes")
    space.knob("a", [0, 1, 2, 5])
    space.knob("mode", ["plain", "padded"])
    space.knob("pad", [0, 3], when=parse("mode == 'padded'"))
    space.knob("order", [("m", "n"), ("n", "m")])
    for name, text in {
        "sum": "a + pad",
        "share": "7 // a",
        "half": "pad / 2",
        "chosen": "a if mode == 'plain' else pad * 4",
        "large": "(a + 10) ** 30",
        "both": "a > 1 and pad > 0",
        "word": "mode",
    }.items():
        space.derive(name, parse(text))
    configs = list(space)
    columns = space.derived_arrays(space.places(range(len(configs))))
    for place, config in enumerate(configs):
        each = {name: values.tolist()[place] for name, (values, absent) in columns.items() if not absent[place]}
        assert each == space.derived(config)
        assert {name: type(value) for name, value in each.items()} == {
            name: type(value) for name, value in space.derived(config).items()
        }
    space.derive("late", parse("a * 2"))
    assert space.derived_arrays(space.places([len(configs) - 1]))["late"][0].tolist() == [10]


def test_ranks_of_neighbors_are_those_of_the_configs(recorded: RecordedSpace) -> None:
    space = recorded.space
    near = space.neighbors(space.at(7))
    assert sorted(space.neighbor_ranks(7)) == sorted(map(space.rank, near)) and near


def test_linear_algebra_has_its_threads_back_afterwards() -> None:
    functions = _functions()
    if functions is None:
        pytest.skip("numpy uses another library here than OpenBLAS")
    threads, before = functions[0], functions[0]()
    with one_thread():
        with one_thread():
            assert threads() == 1
        assert threads() == 1
    assert threads() == before

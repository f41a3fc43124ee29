"""What every target must satisfy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import pytest

from deepgen import targets
from deepgen.targets import Target


class TargetSuite:
    """Tests of targets. A subclass lists their names."""

    names: ClassVar[Sequence[str]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "target" in metafunc.fixturenames:
            metafunc.parametrize("target", [targets.resolve(name) for name in self.names], ids=self.names)

    def test_its_name_says_its_kind(self, target: Target) -> None:
        kind = targets.KINDS.get(target.kind)()
        assert type(kind.from_json(target.to_json())) is type(target)
        assert target.name == target.kind or target.name.startswith(target.kind + ":")

    def test_its_facts_are_json_and_come_back_whole(self, target: Target) -> None:
        text = json.dumps(target.to_json())
        assert targets.from_json(json.loads(text)) == target

    def test_its_fingerprint_is_that_of_its_facts(self, target: Target) -> None:
        assert target.fingerprint() == targets.resolve(target.name).fingerprint()
        others = {t.fingerprint() for t in map(targets.resolve, self.names) if t.name != target.name}
        assert target.fingerprint() not in others

    def test_it_describes_itself_in_one_line(self, target: Target) -> None:
        assert target.name in target.describe() and "\n" not in target.describe()

    def test_it_cannot_be_changed(self, target: Target) -> None:
        with pytest.raises(AttributeError):
            target.name = "other"  # type: ignore[misc]

    def test_it_says_what_it_can_do(self, target: Target) -> None:
        assert target.languages and target.runner in ("cpu", "gpu", "riscv", "sim", "vta")
        assert target.runs_on(target)
        assert json.loads(json.dumps(target.build_facts()))["name"] == target.name
        peak = target.peak("f32")
        assert peak is None or peak > 0.0

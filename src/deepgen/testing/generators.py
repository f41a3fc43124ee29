"""What every generator must satisfy, for each operator and target that it supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from deepgen import targets
from deepgen.generators import Generator
from deepgen.operators import Operator
from deepgen.operators.signature import dense_strides, stride_scalars
from deepgen.run.call.plans import check_shape
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.vocabulary import Kernel


class GeneratorSuite:
    """Tests of generators. A subclass lists them, with the operators and target names to test them on."""

    generators: ClassVar[Sequence[Generator]]
    operators: ClassVar[Sequence[Operator]]
    targets: ClassVar[Sequence[str]]
    _spaces: ClassVar[dict[tuple[str, str, str], Space]] = {}
    _cases: ClassVar[dict[type[GeneratorSuite], list[Any]]] = {}

    def is_tried(self, family: Generator, place: int, target: str) -> bool:
        """Whether a generator is tested on a target with the operator at this index; False saves time."""
        return True

    def sampled(self, family: Generator) -> int:
        """The number of configs of each space that are emitted."""
        return 25

    def cases(self) -> Iterator[tuple[Generator, Operator, Target]]:
        chips = {name: targets.resolve(name) for name in self.targets}
        for family in self.generators:
            for place, operator in enumerate(self.operators):
                for name, chip in chips.items():
                    if self.is_tried(family, place, name) and family.refuses(operator, chip) is None:
                        yield family, operator, chip

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "family" in metafunc.fixturenames:
            if type(self) not in self._cases:  # the same for each test
                self._cases[type(self)] = [
                    pytest.param(family, operator, target, id=f"{family.name}-{operator.slug()}-{target.name}")
                    for family, operator, target in self.cases()
                ]
            metafunc.parametrize(("family", "operator", "target"), self._cases[type(self)])

    def _space_of(self, family: Generator, operator: Operator, target: Target) -> Space:
        """The space, built once for all tests."""
        key = family.name, operator.slug(), target.name
        if key not in self._spaces:
            self._spaces[key] = family.space(operator, target)
        return self._spaces[key]

    def test_each_serves_something(self) -> None:
        served = {family.name for family, _, _ in self.cases()}
        assert served == {family.name for family in self.generators}

    def test_the_space_is_not_empty_and_holds_the_default(
        self, family: Generator, operator: Operator, target: Target
    ) -> None:
        space = self._space_of(family, operator, target)
        assert space.count() > 1
        assert space.explain(dict(family.default(operator, target))) == []

    def test_the_space_is_the_same_each_time(self, family: Generator, operator: Operator, target: Target) -> None:
        assert family.space(operator, target).fingerprint() == self._space_of(family, operator, target).fingerprint()

    def test_each_config_is_one_kernel(self, family: Generator, operator: Operator, target: Target) -> None:
        space = self._space_of(family, operator, target)
        configs = [space.at(r) for r in sorted(set(space.sample_ranks(self.sampled(family), seed=1)))]
        kernels = [family.emit(operator, target, c) for c in configs]
        assert len({k.id for k in kernels}) == len(configs), "two configs gave the same kernel"
        assert family.emit(operator, target, configs[0]).id == kernels[0].id, "the same config gave another kernel"

    def test_kernels_are_pure_data_and_name_only_what_the_operator_has(
        self, family: Generator, operator: Operator, target: Target
    ) -> None:
        kernel = family.emit(operator, target, family.default(operator, target))
        assert Kernel.from_json(kernel.to_json()) == kernel
        tensors = {t.name for t in operator.tensors()}
        named = {getattr(arg, "tensor", None) for step in kernel.plan.steps for arg in step.args} - {None}
        assert named and named <= tensors
        outputs = {t.name for t in operator.tensors() if t.role != "input"}
        assert outputs <= named
        check_shape(kernel, {**operator.scalars(), **_dense(operator)})

    def test_a_config_outside_the_space_is_explained(
        self, family: Generator, operator: Operator, target: Target
    ) -> None:
        space = self._space_of(family, operator, target)
        config = dict(family.default(operator, target))
        knob = space.knobs[0].name
        assert not space.contains({**config, knob: 10**9})


def _dense(operator: Operator) -> dict[str, int]:
    """The strides of dense tensors, by the names that a kernel's requirements use."""
    strides: dict[str, int] = {}
    for tensor in operator.tensors():
        strides |= stride_scalars(tensor.name, dense_strides(tensor.shape))
    return strides

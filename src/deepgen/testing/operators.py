"""What every operator must satisfy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from deepgen import operators
from deepgen.operators import Operator, Signature, TensorFacts, record
from deepgen.operators.compare import compare
from deepgen.vocabulary.dtypes import narrow


class OperatorSuite:
    """Tests of operators. A subclass lists small problems, since the reference of a large one takes seconds."""

    operators: ClassVar[Sequence[Operator]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "operator" in metafunc.fixturenames:
            metafunc.parametrize("operator", self.operators, ids=lambda operator: operator.slug())

    def test_it_is_json_both_ways(self, operator: Operator) -> None:
        assert operators.from_json(json.loads(json.dumps(operator.to_json()))) == operator
        signature = operator.signature()
        assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature

    def test_its_record_tells_the_same(self, operator: Operator) -> None:
        kept = operators.from_json(json.loads(json.dumps(record(operator).to_json())))
        assert (kept.describe(), kept.slug(), kept.work()) == (operator.describe(), operator.slug(), operator.work())
        assert kept.tensors() == operator.tensors() and dict(kept.scalars()) == dict(operator.scalars())
        for probe in operator.probes():
            for output in operator.signature().outputs:
                assert kept.tolerance(output.name, probe) == operator.tolerance(output.name, probe)

    def test_inputs_depend_on_the_seed_and_on_nothing_else(self, operator: Operator) -> None:
        assert operator.probes()[0] == "normal"
        for probe in operator.probes():
            first, again = operator.inputs(1, probe), operator.inputs(1, probe)
            read = {t.name: t for t in operator.tensors() if t.role != "output"}
            assert first.keys() == read.keys()
            for name, array in first.items():
                assert (array.shape, array.dtype) == (read[name].shape, read[name].dtype.numpy())
                np.testing.assert_array_equal(array, again[name])
        other = operator.inputs(2)
        assert any(not np.array_equal(operator.inputs(1)[name], other[name]) for name in other)

    def test_its_reference_rounded_to_the_format_is_right_and_a_changed_one_is_wrong(self, operator: Operator) -> None:
        for probe in operator.probes():
            with np.errstate(all="ignore"):
                answers = operator.reference(operator.inputs(3, probe))
                for tensor in (t for t in operator.tensors() if t.role != "input"):
                    answer, allowed = answers[tensor.name], operator.tolerance(tensor.name, probe)
                    assert answer.values.shape == tensor.shape
                    rounded = narrow(answer.values, tensor.dtype)
                    assert compare(rounded, answer, tensor.dtype, allowed).ok, f"{probe}: {tensor.name}"
                    off = rounded.copy()
                    off.reshape(-1)[off.size // 2] = narrow(np.full(1, 77), tensor.dtype)[0]
                    assert probe != "normal" or not compare(off, answer, tensor.dtype, allowed).ok

    def test_a_call_with_its_own_arrays_is_itself(self, operator: Operator) -> None:
        facts = {t.name: TensorFacts(t.shape, t.dtype.name) for t in operator.tensors() if t.role != "output"}
        assert operator.bind(facts) == operator

    def test_its_folder_is_no_word_and_its_work_is_not_nothing(self, operator: Operator) -> None:
        assert not set(operator.slug()) & set("/= \\")
        work = operator.work()
        assert work.read > 0 and work.written > 0 and work.flops > 0

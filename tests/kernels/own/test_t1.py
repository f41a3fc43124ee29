"""T1 files as kernels: what is read from them, and the errors reported for invalid ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen import targets
from deepgen.frontends import formats
from deepgen.kernels.own.arguments import ScalarArgument, TensorArgument
from deepgen.vocabulary import BadInput, ConstantCopy, DeepgenError, ScalarArg, TensorArg
from t1_files import SCALE, SOURCE, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t1")


REPO = Path(__file__).parents[3]
HUB, EXAMPLES = REPO / "data" / "recorded", REPO / "examples" / "t1"


def test_a_file_says_all_that_tuning_takes(tmp_path: Path) -> None:
    found = formats.read(written(tmp_path))
    assert (found.trials, found.time_budget, found.notes) == (3, None, ())
    assert found.kernel.description.arguments == (
        TensorArgument("y", "output", (4096,), "f32"),
        TensorArgument("x", "input", (4096,), "f32", ("uniform", 0, 2.0)),
        ScalarArgument("factor", "f32", 0.5),
        ScalarArgument("n", "i32", 4096),
    )
    assert found.kernel.description.default == {"UNROLL": 2}
    assert found.kernel.family.space(found.kernel.operator(), targets.resolve("cpu")).count() == 3


@pytest.mark.parametrize(("name", "count"), [("convolution", 4362), ("hotspot", 82984)])
def test_files_of_the_hub_are_taken_as_they_are(name: str, count: int) -> None:
    assert (EXAMPLES / f"{name}.T1.json").read_bytes() == (HUB / f"{name}.T1.json").read_bytes()
    found = formats.read(EXAMPLES / f"{name}.T1.json")
    target, operator = targets.resolve("cuda:sm_90a"), found.kernel.operator()
    space = found.kernel.family.space(operator, target)
    assert space.count() == count
    config = {**space.at(0), "block_size_x": 48, "block_size_y": 2, "tile_size_x": 3, "tile_size_y": 4}
    step = found.kernel.family.emit(operator, target, config).plan.steps[0]
    assert step.block == (48, 2, 1) and step.grid == (29, 512, 1), "ProblemSize 4096 x 4096 over GridDiv, rounded up"
    assert any("GlobalSize is not used" in note for note in found.notes)


def test_what_lies_in_constant_memory_is_copied_there_and_passed_where_the_kernel_takes_it() -> None:
    kernel = formats.read(EXAMPLES / "convolution.T1.json").kernel
    target, operator = targets.resolve("cuda:sm_90a"), kernel.operator()
    plan = kernel.family.emit(operator, target, kernel.family.default(operator, target)).plan
    assert plan.constants == (ConstantCopy("d_filter", "d_filter"),)
    assert plan.steps[0].args == (TensorArg("output_image"), TensorArg("input_image"), TensorArg("d_filter"))


def test_numbers_are_passed_by_value() -> None:
    kernel = formats.read(EXAMPLES / "gemm.T1.json").kernel
    target, operator = targets.resolve("cuda:sm_90a"), kernel.operator()
    plan = kernel.family.emit(operator, target, kernel.family.default(operator, target)).plan
    assert plan.steps[0].args[:3] == (ScalarArg("i32", "m"), ScalarArg("i32", "n"), ScalarArg("i32", "k"))
    assert dict(operator.values()) == {"m": 4096, "n": 4096, "k": 4096}


def test_a_file_that_contradicts_itself_is_told_by_its_keys() -> None:
    with pytest.raises(BadInput) as error:
        formats.read(HUB / "gemm.T1.json")
    for part in (
        "gemm.T1.json",
        "Language is 'OpenCL'",
        "BenchmarkName is 'hotspot', but General.BenchmarkName is 'gemm'",
        "LocalSize.X names 'block_size_x', which is not a tuning parameter",
    ):
        assert part in str(error.value)


def specification(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["KernelSpecification"].update({key: value})


def argument(place: int, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["KernelSpecification"]["Arguments"][place].update(fields)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.pop("KernelSpecification"), "KernelSpecification is missing"),
        (specification("KernelFile", "other.c"), "KernelFile is 'other.c', but there is no such file"),
        (specification("Arguments", None), "Arguments is missing"),
        (specification("CompilerOptions", "-O3"), "CompilerOptions is '-O3'"),
        *(
            (
                specification("CompilerOptions", ["-O2", *flags]),
                f"CompilerOptions is {flags[0]!r} (plain flags",
            )
            for flags in (
                ("-wrapper", "sh,-c,touch ran"),
                ("-B.",),
                ("-o", "/home/me/file"),
                ("-fplugin=x.so",),
                ("@options",),
                ("-specs=x",),
                ("-Xclang", "-load"),
                ("-I/etc",),
                ("-include", "x"),
                ("--config=x",),
                ("x.c",),
            )
        ),
        (argument(0, Type="custom"), "Arguments[0].Type is 'custom'"),
        (argument(0, Size="ProblemSize[0] * width"), "Arguments[0].Size names 'width'"),
        (argument(0, Size=0), "Arguments[0].Size is 0"),
        (argument(0, AccessType="ReadOnly", FillType="Constant"), "the kernel has no output"),
        (argument(1, FillType="Script"), "Arguments[1].FillType is 'Script'"),
        (argument(1, MemoryType="Local"), "Arguments[1].MemoryType is 'Local'"),
        (argument(2, FillValue=None), "Arguments[2].FillValue is missing"),
        (lambda data: data.update(Budget=[{"Type": "ConfigurationFraction", "BudgetValue": 0.1}]), "Budget is"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(change: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        formats.read(written(tmp_path, change))
    assert sentence in str(error.value) and "scale.json" in str(error.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (SOURCE.replace("float factor, int n", "float factor"), "scale takes 3 parameters in scale.c, but 4 arguments"),
        (SOURCE.replace("float factor", "double factor"), "argument 2 of scale, factor, is f32"),
        (SOURCE.replace("UNROLL", "STEP"), "knob UNROLL is a macro that scale.c never uses"),
        (SOURCE.replace("scale(", "other("), "scale.c has no function scale"),
    ],
)
def test_a_source_that_does_not_fit_the_file_is_told_apart(source: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        _ = formats.read(written(tmp_path, source=source)).kernel.family


def test_defaults_that_are_no_config_are_passed_over_in_words(tmp_path: Path) -> None:
    found = formats.read(
        written(tmp_path, lambda data: data["ConfigurationSpace"]["TuningParameters"][0].update(Default=8))
    )
    assert found.kernel.description.default is None
    assert found.notes == ("the Defaults break 'UNROLL <= 4': no Default is used",)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything in a file."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in parts:
        yield (*path, key)
        yield from leaves(value, (*path, key))


JUNK = [None, True, -1, 0, 1.5, 10**30, "", "x", "1 +", "1 / 0", "ProblemSize[7]", "[]", [], {}, [[]], {"X": []}, "é\n"]


@given(st.sampled_from(sorted(leaves(SCALE), key=str)), st.sampled_from(JUNK))
def test_junk_anywhere_is_told_in_words(folder: Path, path: tuple[Any, ...], junk: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = junk

    file = written(folder, change)
    try:
        kernel = formats.read(file).kernel
        operator, target = kernel.operator(), targets.resolve("cpu")
        emitted = kernel.family.emit(operator, target, kernel.family.default(operator, target))
    except DeepgenError as error:
        assert str(error).strip()
    else:
        assert emitted.plan.steps and all(source.text for source in emitted.sources)

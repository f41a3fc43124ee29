"""What the Hopper family offers, and that its kernels build with their accumulators in registers."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import needs
from deepgen import generators, targets
from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm
from deepgen.kernels.gemm.sm90_gemm.lower import ATOM_BYTES, lower, result_line
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import EXACT_SUMS
from deepgen.run.call.plans import check_shape, evaluate, workspaces
from deepgen.space import compile as compiler
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, DescriptorArg, TensorArg, WorkspaceArg

FAMILY, HOPPER = Sm90Gemm(), targets.resolve("cuda:sm_90a")
SQUARE = gemm(4096, 4096, 4096, dtype="bf16", layout="nt")
SHAPES = [
    SQUARE,
    gemm(512, 512, 512, dtype="bf16", layout="nt"),
    gemm(16, 4096, 4096, dtype="f16", layout="nt"),
    gemm(64, 64, 64, batch=512, dtype="bf16", layout="nt"),
    gemm(256, 256, 65536, dtype="bf16", layout="nt"),
    gemm(1000, 776, 520, dtype="f16", layout="tn"),
    gemm(8, 8, 8, dtype="bf16"),
    gemm(1000, 777, 520, dtype="bf16", layout="nt", bias=True, activation="gelu", beta=0.5, scales="column"),
    gemm(4096, 4096, 4096, dtype="tf32", layout="nt"),
    gemm(384, 384, 4096, dtype="i8", layout="nt"),
    gemm(2048, 2048, 2048, dtype="f8e4m3", c="bf16", layout="nt", scales="row", fast_sums=True),
    gemm(2048, 2048, 2048, dtype="f8e4m3", c="bf16", layout="nt"),
]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (SQUARE, "cuda:sm_80", "sm_90a"),
        (SQUARE, "cuda:sm_90", "sm_90a"),
        (gemm(64, 64, 64), "cuda:sm_90a", "f32 sums"),
        (gemm(64, 64, 64, dtype="i8"), "cuda:sm_90a", "layout nt"),
        (gemm(64, 64, 64, dtype="i8", layout="nt", alpha=0.5), "cuda:sm_90a", "must be integers"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Gemm, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


def test_it_serves_large_products_and_others_take_the_rest() -> None:
    assert generators.find(SQUARE, HOPPER).name == "sm90_gemm"
    assert generators.find(gemm(1024, 1024, 1024, dtype="i8"), HOPPER).name == "mma_gemm"
    assert generators.find(SQUARE, targets.resolve("cuda:sm_80")).name == "mma_gemm"


@pytest.mark.parametrize(
    ("operator", "odd"),
    [
        (gemm(64, 72, 60, dtype="bf16", layout="nt"), {"A", "B"}),
        (gemm(60, 72, 64, dtype="bf16", layout="tn"), {"A"}),
        (gemm(64, 77, 64, dtype="f16", layout="nn"), {"B"}),
        (gemm(64, 77, 65, dtype="f8e4m3", layout="nt"), {"A", "B"}),
        (gemm(3, 5, 8, dtype="bf16", layout="nt", batch=3), set()),
        (gemm(3, 5, 8, dtype="bf16", layout="tt", batch=3), {"A"}),
    ],
    ids=lambda value: value.slug() if isinstance(value, Gemm) else "",
)
def test_operands_whose_lines_are_not_aligned_are_copied_first_or_loaded(operator: Gemm, odd: set[str]) -> None:
    configs = [dict(config) for config in FAMILY.ranked(operator, HOPPER)]
    copies, loads = ([c for c in configs if c.get("REALIGN", "copy") == way] for way in ("copy", "load"))
    assert not odd or loads, "without a step before it"
    for config in (*copies[:1], *loads[:1]):
        plan = FAMILY.emit(operator, HOPPER, config).plan
        copied, loaded = (odd, set[str]()) if config in copies else (set[str](), odd)
        assert [step.entry for step in plan.steps] == (["realign", "gemm"] if copied else ["gemm"])
        assert plan.steps[-1].overlaps == bool(copied)
        args = plan.steps[-1].args
        maps = [arg for arg in args if isinstance(arg, DescriptorArg) and arg.tensor != "C"]
        assert {arg.tensor for arg in maps if arg.copy} == copied
        assert {arg.tensor for arg in args if isinstance(arg, TensorArg)} - {"C"} == loaded
        spaces = workspaces(plan, operator.scalars())
        for arg in maps:
            pitch, matrix = (evaluate(size, operator.scalars()) for size in arg.spec.strides or ())
            assert pitch % 16 == 0 and matrix % 16 == 0
            if arg.copy:
                assert spaces[arg.copy][1] == operator.batch * matrix


@pytest.mark.parametrize("operator", SHAPES, ids=Gemm.slug)
def test_the_default_is_a_point_of_the_space(operator: Gemm) -> None:
    assert FAMILY.refuses(operator, HOPPER) is None
    assert FAMILY.space(operator, HOPPER).explain(dict(FAMILY.default(operator, HOPPER))) == []


@pytest.mark.parametrize("operator", SHAPES)
def test_ranked_configs_are_points_of_the_space_and_begin_with_the_default(operator: Gemm) -> None:
    found = list(islice(FAMILY.ranked(operator, HOPPER), 12))
    space = FAMILY.space(operator, HOPPER)
    assert found[0] == FAMILY.default(operator, HOPPER)
    assert all(not space.explain(config) for config in found)
    assert len({json.dumps(config, sort_keys=True) for config in found}) == len(found)


def test_ranked_configs_are_of_several_kinds() -> None:
    """The model may be wrong about an entire kind."""
    found = islice(FAMILY.ranked(gemm(112, 1520, 4016, dtype="bf16", layout="nt"), HOPPER), 12)
    assert {(config["SCHEDULE"], config["FIXUP"]) for config in found} >= {
        ("cooperative", "none"),
        ("ping-pong", "none"),
        ("cooperative", "split"),
        ("cooperative", "exchange"),
    }


@pytest.mark.parametrize("operator", SHAPES, ids=Gemm.slug)
def test_the_space_is_compiled_without_a_search_for_an_order(operator: Gemm, monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("a search for an order takes seconds, in every study")

    monkeypatch.setattr(compiler, "Planner", searched)
    space = FAMILY.space(operator, HOPPER)
    assert space.uniform and space.count() > 10_000
    assert all(space.explain(config) == [] for config in space.sample(20, seed=1))


def test_tiles_go_in_bands_of_twelve_but_no_curve_does() -> None:
    space = FAMILY.space(SQUARE, HOPPER)
    config = {**FAMILY.default(SQUARE, HOPPER), "GROUP": 12}
    assert config in space
    assert {**config, "HILBERT": True} not in space  # it would leave the square
    assert {**config, "GROUP": 16, "HILBERT": True} in space


def test_what_does_not_fit_the_chip_is_named() -> None:
    config, space = dict(FAMILY.default(SQUARE, HOPPER)), FAMILY.space(SQUARE, HOPPER)
    wide = {**config, "CONSUMERS": 2, "TILES_M": 2, "BN": 256}
    assert any("registers" in broken.name for broken in space.explain(wide))
    assert any("shared memory" in broken.name for broken in space.explain({**config, "STAGES": 12}))


def test_arrays_that_the_copy_engine_cannot_read_are_refused_before_the_launch() -> None:
    kernel = FAMILY.emit(SQUARE, HOPPER, FAMILY.default(SQUARE, HOPPER))
    check_shape(kernel, gemm(100, 200, 304, dtype="bf16", layout="nt").scalars())
    with pytest.raises(BadInput, match="16 bytes"):
        check_shape(kernel, gemm(100, 200, 300, dtype="bf16", layout="nt").scalars())


def test_a_split_kernel_serves_no_k_that_is_too_short_for_its_parts() -> None:
    operator = gemm(128, 128, 16384, dtype="bf16", layout="nt")
    config = next(iter(FAMILY.space(operator, HOPPER).restrict({"FIXUP": ["split"], "PARTS": [16]}).sample(1, seed=1)))
    kernel = FAMILY.emit(operator, HOPPER, config)
    with pytest.raises(BadInput, match="split"):
        check_shape(kernel, gemm(128, 128, 256, dtype="bf16", layout="nt").scalars())
    counters = [a for a in kernel.plan.steps[0].args if isinstance(a, WorkspaceArg) and a.name == "arrived"]
    assert counters[0].zeroed and counters[0].lasting  # no run has to clear them


def test_a_kernel_that_divides_the_last_tiles_serves_no_result_with_too_few_or_too_many_of_them() -> None:
    operator = gemm(2048, 11008, 4096, dtype="bf16", layout="nt")  # 688 tiles of 128 x 256: five waves and 28
    config = {**FAMILY.default(operator, HOPPER), "CONSUMERS": 2, "TILES_M": 1, "BN": 256, "STAGES": 4, "CLUSTER_N": 1}
    config |= {"SCHEDULE": "cooperative", "STORE": "late", "BUFFERS": 1, "FIXUP": "tail", "PARTS": 4, "REGISTERS": True}
    del config["PERSISTENT"]
    assert FAMILY.space(operator, HOPPER).explain(config) == []
    kernel = FAMILY.emit(operator, HOPPER, config)
    check_shape(kernel, operator.scalars())
    for m, n in ((2048, 2048), (4096, 4096)):  # 128 tiles; 512: three waves and 116
        with pytest.raises(BadInput, match="tiles"):
            check_shape(kernel, gemm(m, n, 4096, dtype="bf16", layout="nt").scalars())


def test_a_matrix_lower_than_a_tile_is_fetched_as_it_is_and_no_higher_one_is_taken() -> None:
    operator = gemm(16, 4096, 4096, dtype="bf16", layout="nt")
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    first = next(a for a in kernel.plan.steps[0].args if isinstance(a, DescriptorArg) and a.tensor == "A")
    assert first.spec.box[1] == 16
    with pytest.raises(BadInput, match="16 rows"):
        check_shape(kernel, gemm(64, 4096, 4096, dtype="bf16", layout="nt").scalars())


def test_a_kernel_with_its_sizes_in_the_code_serves_no_others() -> None:
    config = {**FAMILY.default(SQUARE, HOPPER), "FIXED": True}
    kernel = FAMILY.emit(SQUARE, HOPPER, config)
    check_shape(kernel, SQUARE.scalars())
    for other in ({"M": 4095}, {"batch": 2}, {"ldc": 8192}, {"alpha": 0.5}):
        with pytest.raises(BadInput, match="was made"):
            check_shape(kernel, {**SQUARE.scalars(), **other})
    assert FAMILY.default(SQUARE, HOPPER)["FIXED"] is False  # the default serves them all


def test_blocks_that_share_a_tile_fetch_whole_groups_of_lines_whatever_its_width() -> None:
    config = {**FAMILY.default(SQUARE, HOPPER), "CLUSTER_M": 2, "CLUSTER_N": 1, "BN": 168, "STAGES": 3}
    assert FAMILY.space(SQUARE, HOPPER).explain(config) == []
    boxes = {
        arg.tensor: list(arg.spec.box)
        for arg in FAMILY.emit(SQUARE, HOPPER, config).plan.steps[0].args
        if isinstance(arg, DescriptorArg)
    }
    assert boxes["B"][1] == 88  # eight columns are fetched by both


@pytest.mark.parametrize("operator", [*SHAPES, gemm(200, 4096, 512, dtype="bf16", layout="nt")], ids=Gemm.slug)
def test_no_copy_fetches_a_box_that_the_driver_refuses(operator: Gemm) -> None:
    space = FAMILY.space(operator, HOPPER)
    tall = {"CONSUMERS": [3], "TILES_M": [2]}  # 384 rows, if the matrix has that many
    for config in (*space.sample(40, seed=3), *(space.restrict(tall).sample(20, seed=3) if operator.m > 192 else ())):
        for arg in FAMILY.emit(operator, HOPPER, config).plan.steps[0].args:
            if isinstance(arg, DescriptorArg):
                assert all(1 <= int(side) <= 256 for side in arg.spec.box), config


@pytest.mark.parametrize("operator", [SQUARE, gemm(4096, 4096, 4096, dtype="i8", layout="nt")], ids=Gemm.slug)
def test_results_leave_in_lines_that_tiles_have_whole_ones_of(operator: Gemm) -> None:
    size = 2 if operator.c == "bf16" else 4
    for bn in range(16, 257, 16 if size == 4 else 8):
        line = result_line(operator, bn)
        assert bn * size % line == 0
        assert line in (128, 64, 32) or line // 16 % 2 == 1  # swizzled, or on different banks without swizzling


def test_sums_of_8_bit_floats_are_as_exact_as_was_asked_for_whatever_a_search_finds() -> None:
    fast, exact = SHAPES[-2:]
    assert ATOM_BYTES == EXACT_SUMS  # after this many bytes sums move to f32, which the tolerance assumes
    for config in (dict(FAMILY.default(exact, HOPPER)), *FAMILY.space(exact, HOPPER).sample(200, seed=5)):
        assert lower(exact, config).macros["EXACT"] == 1
        assert "late" not in config["STORE"]  # registers hold two sets of sums
    for other in (fast, SQUARE):
        assert lower(other, FAMILY.default(other, HOPPER)).macros["EXACT"] == 0


def test_the_model_takes_no_longer_tile_than_registers_hold_two_sets_of_sums_for() -> None:
    """Fast sums allow tiles that exact ones cannot have: the default is a separate one, not a
    fallback to narrow tiles.
    """
    fast, exact = (
        gemm(8192, 8192, 8192, dtype="f8e4m3", c="bf16", layout="nt", fast_sums=sums) for sums in (True, False)
    )
    wide = {op: FAMILY.default(op, HOPPER) for op in (fast, exact)}
    area = {op: c["CONSUMERS"] * c["TILES_M"] * c["BN"] for op, c in wide.items()}
    assert area[fast] > area[exact] >= 2 * 160


def test_batches_are_a_dimension_of_the_tensor_maps() -> None:
    operator = gemm(64, 64, 64, batch=512, dtype="bf16", layout="nt")
    args = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER)).plan.steps[0].args
    for arg in (a for a in args if isinstance(a, DescriptorArg)):
        assert arg.spec.sizes is not None and arg.spec.sizes[2] == "batch"


@pytest.mark.parametrize(
    ("name", "operator", "changes"),
    [
        ("square", SQUARE, {}),
        ("turned", gemm(512, 512, 512, dtype="f16", layout="tn"), {}),
        ("integers", gemm(384, 384, 4096, dtype="i8", layout="nt"), {"BN": 32}),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    name: str, operator: Gemm, changes: dict[str, Any], golden: Callable[[str, str], str]
) -> None:
    kernel = FAMILY.emit(operator, HOPPER, {**FAMILY.default(operator, HOPPER), **changes})
    kept = {key: kernel.to_json()[key] for key in ("name", "language", "flags", "plan")}
    assert golden(f"sm90_gemm/{name}.json", json.dumps(kept, indent=1) + "\n") == ""
    assert golden(f"sm90_gemm/{name}_products.h", next(s.text for s in kernel.sources if s.name == "products.h")) == ""


def built(operator: Gemm, config: Any, folder: Path) -> Any:
    toolchain = needs.toolchain(HOPPER, "cuda")
    folder.mkdir()
    with Group() as group:
        return toolchain.build(FAMILY.emit(operator, HOPPER, config), HOPPER, folder, BuildLimits(), group)


@pytest.mark.slow
def test_defaults_keep_their_sums_in_registers(tmp_path: Path) -> None:
    tried = (SHAPES[0], SHAPES[2], SHAPES[4], *SHAPES[-4:])
    assert {operator.a for operator in tried} == {"bf16", "f16", "tf32", "i8", "f8e4m3"}
    for number, operator in enumerate(tried):
        result = built(operator, FAMILY.default(operator, HOPPER), tmp_path / str(number))
        assert (result.facts["spill_bytes"], result.log) == (0, ""), operator.describe()


@pytest.mark.parametrize(
    "ways",
    [
        {"SCHEDULE": ["ping-pong"]},
        {"FIXUP": ["split"]},
        {"FIXUP": ["exchange"], "CLUSTER_M": [2]},
        {"FIXUP": ["stream"]},
        {"STORE": ["late"], "CACHE": ["A"], "HILBERT": [True]},
        {"STORE": ["reuse"], "BN": [72]},
        {"FIXUP": ["tail"], "BN": [192]},
        {"CONSUMERS": [2], "ATOMS": [2]},
        {"CONSUMERS": [3], "REGISTERS": [True], "BN": [200]},
        {},
    ],
    ids=str,
)
def test_sampled_configs_build(ways: dict[str, Any], tmp_path: Path) -> None:
    operator = SHAPES[-1] if "ATOMS" in ways else SQUARE if "BN" in ways else SHAPES[1] if ways else SHAPES[5]
    (config,) = FAMILY.space(operator, HOPPER).restrict(ways).sample(1, seed=2)
    result = built(operator, config, tmp_path / "sample")
    assert result.log == ""
    assert int(str(result.facts["registers"])) > 0


def test_a_kernel_with_one_stage_is_refused_a_longer_k() -> None:
    """It lets go of a stage when the products of the next have begun: with more steps it would wait forever."""
    operator = gemm(512, 512, 40, dtype="bf16", layout="nt")
    [config] = FAMILY.space(operator, HOPPER).restrict({"STAGES": [1], "FIXED": [False]}).sample(1, seed=1)
    kernel = FAMILY.emit(operator, HOPPER, config)
    check_shape(kernel, {**operator.scalars(), "K": 64})
    with pytest.raises(BadInput, match="at most 64 elements of K"):
        check_shape(kernel, {**operator.scalars(), "K": 72})

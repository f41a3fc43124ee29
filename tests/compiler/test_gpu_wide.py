"""How kernels with products of four warps save time: no waits between iterations, few launches, shared memory that is
used twice; and index arithmetic that allows wide stores.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.compiler.passes.ir import Alloc, Program, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.schedule.bounds import IndexBounds
from deepgen.compiler.text import gpu
from deepgen.operators import gemm
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.named import convolutions
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary import Kernel

FAMILY = Rules()


def hopper() -> Gpu:
    found = targets.resolve("cuda:sm_90a")
    assert isinstance(found, Gpu)
    return found


def convolution(kind: str = "flat", **words: Any) -> Program:
    """With the first sketch of that kind; `flat` has all pixels of all images as rows."""
    made = convolutions.DilatedConv2d.make(
        {"N": 4, "H": 14, "W": 14, "CI": 64, "CO": 64, "k": 3, "pad": 1, "dtype": "f16", **words}
    )
    sketch = next(s for s in gpu_sketches(made.expression(), hopper()) if s.name.startswith(kind))
    return lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)


def test_products_of_a_large_gemm_run_on_while_the_next_turn_begins() -> None:
    operator = gemm(4096, 4096, 4096, dtype="f16", layout="nt")
    kernel = FAMILY.emit(operator, hopper(), FAMILY.default(operator, hopper()))
    text = kernel.sources[0].text
    assert "products_wait<4>();" in text
    assert "load_matrices" not in text  # matrix units read rows themselves
    assert "write_global<8>(" in text and "write_global<2>(" not in text


def test_operands_with_channels_first_are_packed_by_one_launch() -> None:
    program = convolution(layout="nchw")
    assert [[part.name for part in launch.parts] for launch in program.launches] == [
        ["x.packed", "weight.packed"],
        ["y"],
    ]


def test_an_image_with_channels_first_is_turned_where_it_is_used() -> None:
    program = convolution("wide_taps_turned", layout="nchw")
    assert [launch.name for launch in program.launches] == ["weight.packed", "y"]
    (launch,) = convolution("flat_turned", layout="nchw", k=1, pad=0, stride=2).launches
    assert launch.name == "y"


def test_a_convolution_loads_its_image_while_its_filter_is_packed() -> None:
    program = convolution("wide_taps_turned", layout="nchw")
    kernel = gpu.kernel(program, "cuda", 32)
    assert [step.overlaps for step in kernel.plan.steps] == [False, True]
    assert Kernel.from_json(kernel.to_json()) == kernel
    first, second = kernel.sources[0].text.split("DG_KERNEL")[1:]
    assert "next_may_begin();" in first and "next_may_begin();" not in second
    image, waits, filters = (second.index(word) for word in ("gathered<", "wait_for_launch", "copy_async_or_zero<"))
    assert image < waits < filters


def test_all_first_loads_of_an_image_are_under_way_before_one_is_waited_for() -> None:
    program = convolution("flat_turned", layout="nchw", CI=256, k=1, pad=0, stride=2)
    text = gpu.kernel(program, "cuda", 32).sources[0].text
    assert text.index("gathered<") < text.index("barrier();", text.index("gathered<")) < text.index("write_shared<8>")


def test_launches_that_leave_nothing_to_copy_do_not_overlap() -> None:
    (step,) = gpu.kernel(convolution(), "cuda", 32).plan.steps
    assert not step.overlaps and "overlaps" not in gpu.kernel(convolution(), "cuda", 32).plan.to_json()["steps"][0]


def test_places_of_images_are_one_axis_where_a_filter_has_one_tap() -> None:
    made = convolutions.Conv1d.make({"N": 4, "L": 30, "CI": 64, "CO": 64, "k": 1, "dtype": "f16"})
    wide = next(s for s in gpu_sketches(made.expression(), hopper()) if s.name == "wide")
    assert wide.expression.shape_of("x") == (120, 64)


def test_results_lie_where_operands_lay() -> None:
    (launch,) = convolution().launches
    places = {s.buffer.name: s.buffer.offset for s in walk(launch.body) if isinstance(s, Alloc)}
    assert places["y.rows"] == places["x_rows"] == 0
    assert launch.shared_bytes < 3 * (64 + 64) * 64 * 2 * 2


FACTORS = st.sampled_from((2, 3, 4, 7, 8))


@st.composite
def parts(draw: st.DrawFn) -> Index:
    """A sum of quotients and remainders of quotients, as in fused and split loops."""
    x, total = iterator("x") * draw(st.sampled_from((1, 4, 8))) + iterator("v"), Index()
    for _ in range(draw(st.integers(1, 3))):
        one = x
        for by in draw(st.lists(FACTORS, min_size=1, max_size=2)):
            one = one // by
        total += (one % draw(FACTORS) if draw(st.booleans()) else one) * draw(FACTORS)
    return total + x % draw(FACTORS)


@given(parts())
def test_an_index_keeps_its_value_when_it_is_simplified(index: Index) -> None:
    simple = IndexBounds({"x": (0, 60), "v": (0, 3)}).simple(index)
    for x in range(0, 61, 9):
        for v in range(4):
            by: dict[str, Index | int] = {"x": x, "v": v}
            assert simple.substitute(by) == index.substitute(by)

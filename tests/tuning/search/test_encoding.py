from __future__ import annotations

import numpy as np

from deepgen.space import Space
from deepgen.tuning.search.encoding import Encoding
from deepgen.tuning.search.gaussian import Covariance


def mixed() -> Space:
    space = Space("mixed")
    tile = space.knob("TILE", [16, 32, 48, 64])
    space.permutation("ORDER", ("m", "n", "k"))
    split = space.knob("SPLIT", [False, True])
    space.knob("PARTS", [2, 4], when=split)
    space.knob("HOW", ["a", "b", "c"])
    space.knob("ONLY", [7])
    space.derive("bytes", tile * 4)
    return space


def test_a_space_of_one_point_has_rows_without_columns() -> None:
    space = Space("one")
    space.knob("ONLY", [0])
    assert Encoding(space).codes([0]).shape == (1, 0)


def test_every_config_has_its_own_codes() -> None:
    space = mixed()
    codes = Encoding(space).codes(range(space.count()))
    assert len({tuple(row) for row in codes.tolist()}) == space.count()


def test_a_knob_with_one_value_is_left_out_and_alignment_is_added() -> None:
    names = Encoding(mixed()).names
    assert "ONLY" not in names
    assert "alignment of TILE" in names
    assert "alignment of PARTS" not in names
    assert "bytes" in names


def test_48_is_aligned_like_16_and_not_like_32() -> None:
    encoding = Encoding(mixed())
    column = encoding.names.index("alignment of TILE")
    codes = encoding.codes_of([{"TILE": t} for t in (16, 32, 48, 64)])[:, column].tolist()
    assert codes[0] == codes[2] < codes[1] < codes[3]


def test_the_distances_make_a_kernel_for_knobs_of_every_kind() -> None:
    space = mixed()
    encoding = Encoding(space)
    codes = encoding.codes(range(space.count()))
    matrix = Covariance(encoding.distances).between(codes, codes.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9

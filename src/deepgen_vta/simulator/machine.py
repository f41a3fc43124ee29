"""What a program computes: buffers and memory as arrays, and its instructions one after the other, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepgen.targets import Vta
from deepgen_vta.simulator.timeline import Timeline
from deepgen_vta.target import ACCUMULATOR, INPUT, MICRO_OP, WEIGHT
from deepgen_vta.target.program import Gemm, Image, Load, Program, gemm_places, memory_places

Array = NDArray[Any]
_UNWRITTEN = -0x21524111  # what buffers and results hold before anything is written there


def execute(program: Program, order: Timeline, target: Vta, given: Mapping[str, Array]) -> dict[str, Array]:
    """The results, from the tensors that are given by name. The shapes of results are those of their images."""
    memory = {image.tensor: _laid_out(image, target, given.get(image.tensor)) for image in program.images}
    shapes = {INPUT: (target.rows, target.block), WEIGHT: (target.block, target.block)}
    buffers: dict[str, Array] = {
        name: np.full((target.depth(name), *shape), 0x55, np.int8) for name, shape in shapes.items()
    }
    accumulators = np.full((target.depth(ACCUMULATOR), target.rows, target.block), _UNWRITTEN, np.int32)
    loaded = np.zeros(target.depth(MICRO_OP), np.int64) - 1  # which of the program's micro-ops is at a place
    for run in order.runs:
        one = program.instructions[run.number]
        if isinstance(one, Gemm):
            ops = tuple(program.micro_ops[n] if n >= 0 else (0, 0, 0) for n in loaded[one.first : one.last])
            _gemm(one, gemm_places(ops, _from_zero(one)), buffers, accumulators)
        elif not isinstance(one, Load):
            memory[one.image][memory_places(one)] = accumulators[one.at : one.at + one.rows * one.columns]
        elif one.buffer == MICRO_OP:
            loaded[one.to : one.to + one.rows * one.columns] = memory_places(one)
        else:
            buffers[one.buffer][one.to : one.to + one.rows * one.columns] = memory[one.image][memory_places(one)]
    return {i.tensor: _as_matrix(i, target, memory[i.tensor]) for i in program.images if i.buffer == ACCUMULATOR}


def _from_zero(gemm: Gemm) -> Gemm:
    return Gemm(gemm.reset, 0, gemm.last - gemm.first, gemm.outer, gemm.inner, gemm.steps)


def _gemm(gemm: Gemm, places: tuple[Array, Array, Array], buffers: Mapping[str, Array], accumulators: Array) -> None:
    to, left, right = places
    if gemm.reset:
        accumulators[to] = 0
        return
    products = np.einsum("nri,noi->nro", buffers[INPUT][left].astype(np.int32), buffers[WEIGHT][right].astype(np.int32))
    np.add.at(accumulators, to, products)


def element(image: Image, target: Vta) -> tuple[int, int]:
    """The rows and columns of a matrix in one element of its image."""
    return (target.block if image.buffer == WEIGHT else target.rows), target.block


def _laid_out(image: Image, target: Vta, matrix: Array | None) -> Array:
    """A matrix as the host writes it to memory: elements of its buffer, row by row."""
    if image.buffer == ACCUMULATOR:
        return np.full((image.size, target.rows, target.block), _UNWRITTEN, np.int32)
    assert matrix is not None, "inputs and weights are given"
    high, wide = element(image, target)
    whole = np.zeros((image.rows * high, image.columns * wide), np.int8)
    turned = matrix.transpose(image.axes)
    whole[: turned.shape[0], : turned.shape[1]] = turned
    split = whole.reshape(image.rows, high, image.columns, wide)
    laid_out: Array = split.transpose(0, 2, 1, 3).reshape(image.size, high, wide)
    return laid_out


def _as_matrix(image: Image, target: Vta, elements: Array) -> Array:
    split = elements.reshape(image.rows, image.columns, target.rows, target.block)
    whole = split.transpose(0, 2, 1, 3).reshape(image.rows * target.rows, image.columns * target.block)
    matrix: Array = whole.transpose(image.axes)
    return matrix

"""The reference of a convolution, computed by numpy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.products import distinct
from deepgen.vocabulary.dtypes import widen

if TYPE_CHECKING:
    from deepgen.operators.conv2d import Conv2d

_CHUNK_BYTES = 32 << 20  # of patches that the reference multiplies at once


def reference(conv: Conv2d, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    of, _, out = conv.dtypes
    image, weight = inputs["x"], inputs["weight"]
    if conv.layout == "nchw":
        image, weight = np.moveaxis(image, 1, -1), weight.transpose(2, 3, 1, 0)
    with np.errstate(all="ignore"):
        # Sums of 8-bit products are exact in float64, which numpy multiplies a hundred times faster than integers.
        wide = widen(weight, of).astype(np.float64)
        kept, kind = distinct(image)
        values = _product(conv, image[kept], wide)
        if out.integer:
            return {"y": Answer(_laid_out(conv, values[kind].astype(np.int64)))}
        scale = _scale(conv, image[kept], wide)
        return {"y": Answer(_laid_out(conv, values[kind]), _laid_out(conv, scale[kind]))}


def _product(conv: Conv2d, image: Array, weight: Array) -> Array:
    """Patches times filters, some rows of some images at a time: all patches may take more than the memory."""
    values = np.empty((len(image), conv.out_h, conv.out_w, conv.co))
    filters = weight.transpose(2, 0, 1, 3).reshape(conv.reduced, conv.co)
    row_bytes = 8 * conv.out_w * conv.reduced
    rows = max(1, min(conv.out_h, _CHUNK_BYTES // row_bytes))
    images = max(1, _CHUNK_BYTES // (row_bytes * conv.out_h))
    for at in range(0, len(image), images):
        patches = _patches(conv, _padded(conv, image[at : at + images]))
        for row in range(0, conv.out_h, rows):
            some = patches[:, row : row + rows]
            product = some.reshape(-1, conv.reduced) @ filters
            values[at : at + images, row : row + rows] = product.reshape(*some.shape[:3], conv.co)
    return values


def _padded(conv: Conv2d, images: Array) -> Array:
    around = (conv.pad, conv.pad)
    wide = widen(images, conv.dtypes[0]).astype(np.float64)
    padded: Array = np.pad(wide, ((0, 0), around, around, (0, 0)))
    return padded


def _patches(conv: Conv2d, padded: Array) -> Array:
    """The input patch of each output: images x rows x columns x channels x k x k, as a view."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, (conv.k, conv.k), axis=(1, 2))
    patches: Array = windows[:, :: conv.stride, :: conv.stride]
    return patches


def _scale(conv: Conv2d, image: Array, weight: Array) -> Array:
    """The size of a product: the norms of its patch and its filter, over their length; 1 for numbers of size 1."""
    filters = np.sqrt(np.square(weight).sum(axis=(0, 1, 2)))
    size = np.empty((len(image), conv.out_h, conv.out_w, conv.co), np.float32)
    for at in range(len(image)):
        squares = np.square(_padded(conv, image[at : at + 1])).sum(axis=-1, keepdims=True)
        norms = np.sqrt(_patches(conv, squares).sum(axis=(-1, -2)))
        size[at] = norms[0] / conv.reduced * filters
    return np.where(np.isfinite(size), size, np.float32(0.0))


def _laid_out(conv: Conv2d, values: Array) -> Array:
    return values if conv.layout == "nhwc" else np.ascontiguousarray(np.moveaxis(values, -1, 1))

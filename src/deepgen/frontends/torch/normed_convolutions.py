"""A convolution with a batch norm and what follows it, in a graph of Python's calls, as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from deepgen.frontends.torch.calls import convolution
from deepgen.frontends.torch.patterns import Region, name_of
from deepgen.frontends.torch.products import Asked, placed
from deepgen.frontends.torch.race import contiguous
from deepgen.operators.named import Named
from deepgen.operators.named import operator as named

_STEPS = {**dict.fromkeys(("relu", "relu_"), "relu"), "silu": "silu", "sigmoid": "sigmoid", "tanh": "tanh"}
_ADDED = ("add", "add_", "iadd")
_NORM = ("input", "mean", "var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True)
class NormedConvolution:
    """A convolution, a batch norm with kept statistics, and what follows: the norm is a scale and a bias of channels.

    These are computed in each call: torch does not say when statistics change.
    """

    options: tuple[Any, ...]  # stride and all that follows
    eps: float
    steps: tuple[str, ...]  # after the norm
    places: Mapping[str, int]  # among the region's inputs

    @classmethod
    def of(cls, region: Region) -> NormedConvolution | None:
        if len(region.nodes) < 2:
            return None
        convolution, norm, *after = region.nodes
        if name_of(norm) != "batch_norm" or norm.args[0] is not convolution or norm.kwargs:
            return None
        normed = dict(zip(_NORM, norm.args, strict=False))
        image, weight, bias, *options = (*convolution.args, None)[: max(3, len(convolution.args))]
        if len(normed) < len(_NORM) or convolution.kwargs or any(isinstance(one, Node) for one in tree_leaves(options)):
            return None
        read = {"x": image, "filters": weight, "bias": bias}
        read |= {f"norm_{name}": normed[name] for name in ("mean", "var", "weight", "bias")}
        steps, before = list[str](), norm
        for node in after:
            others = [one for one in node.all_input_nodes if one is not before]
            if name_of(node) in _ADDED and len(others) == 1 and len(node.args) == 2 and not node.kwargs:
                read["residual"] = others[0]
                steps.append("residual")
            elif name_of(node) in _STEPS and not others:
                steps.append(_STEPS[name_of(node)])
            else:
                return None
            before = node
        if len(steps) > len({*steps}) or {*region.inputs} != {*read.values()} - {None}:
            return None
        places = {name: region.inputs.index(one) for name, one in read.items() if one is not None}
        return cls(tuple(options), float(normed["eps"]), tuple(steps), places)

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        """The tensors of the operator."""
        own = {name: inputs[place] for name, place in self.places.items()}
        x = own["x"]
        scale = torch.rsqrt(own["norm_var"] + self.eps)
        scale = scale if "norm_weight" not in own else scale * own["norm_weight"]
        shift = (-own["norm_mean"] if "bias" not in own else own["bias"] - own["norm_mean"]) * scale
        shift = shift if "norm_bias" not in own else shift + own["norm_bias"]
        residual = [own["residual"]] if "residual" in own else []
        return (x, own["filters"], scale.to(x.dtype), shift.to(x.dtype), *residual)

    def read(self, x: Any, filters: Any, scale: Any, shift: Any, residual: Any = None) -> Asked | None:
        plain = convolution(x, filters, shift, *self.options)
        if plain is None or not isinstance(plain.operator, Named):
            return None
        strides = plain.strides or contiguous(plain.shape)
        if residual is not None and (residual.shape, residual.stride()) != (plain.shape, strides):
            return None
        words = {**dict(plain.operator.arguments), "epilogue": ",".join(("scale", "bias", *self.steps))}
        whole = named(plain.operator.name, **words)
        tensors = {"x": plain.tensors[0], "weight": plain.tensors[1], "scale": scale, "bias": shift}
        if residual is not None:
            tensors["residual"] = residual if plain.strides is None else residual.movedim(1, -1)
        ordered = tuple(tensors[one.name] for one in whole.tensors()[:-1])
        args = (x, filters, scale, shift, *(() if residual is None else (residual,)))
        return placed(whole, ordered, args, plain.shape, plain.dtype, plain.strides)

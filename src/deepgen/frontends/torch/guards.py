"""What a call of torch's costs to look at: guards in C++ that tell calls apart, and whether looking pays at all.

torch's compiler has functions in C++ for its own guards: they tell calls apart, and make results, in a third of the
time. From Python the same takes a reading of ten properties, which costs more than a small product. These functions
are not public: where a version of torch lacks them, everything is decided from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
# Modes of the user's own that see every call of torch's functions: how many there are, and each of them.
modes: Callable[[], int] = torch._C._len_torch_function_stack
_mode: Callable[[int], Any] = torch._C._get_function_stack_at
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # of those that see operators
# Whether torch.func's transforms are at work: vmap, grad, ...
_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
Check = Callable[..., bool]
SECONDS = 1e-6  # of a look at a call that stays torch's: half of it in a loop, up to three times in a model
LOOKS = 256  # until it is seen what they earned
_MOST_SAVED = 4  # times as much may be left over from better times
View: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # sizes and strides, from the tensor's first element on
Views: TypeAlias = "tuple[View | None, View | None]"  # of a product's matrices; None: the tensor itself


def check_of(tensors: Sequence[Any]) -> Check | None:
    """Whether other tensors are like these: classes, formats, devices, sizes, strides and `requires_grad`, and what
    changes the meaning of calls: autocast, inference mode, vmap and dispatch modes. Not whether gradients are enabled.
    """
    guards = getattr(_guards, "TensorGuards", None)
    if guards is None or len({id(tensor) for tensor in tensors}) < len(tensors):  # one that is given twice is refused
        return None
    check: Check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: tuple[int, ...] = torch.empty(shape, device="meta").stride()
    return strides


def watched() -> bool:
    """Whether calls must reach torch's own functions: they are transformed, tangents go along, or modes see them."""
    if forward_ad._current_level >= 0 or _transformed() or _dispatch_modes():
        return True
    return any(type(_mode(place)) is not DeviceContext for place in range(modes()))


class Looks:
    """Counts looks at calls that stay torch's. `take` counts one; it raises IndexError where `settle` is due.

    An item is taken from a list: nothing that Python has counts more quickly.
    """

    def __init__(self, earned: Callable[[], float], give_up: Callable[[], None]) -> None:
        """`earned`: the seconds that kernels saved so far. `give_up`: stop looking, as torch's calls cost more."""
        self._earned, self._give_up = earned, give_up
        self._settled = self._saved = 0.0
        self._left: list[None] = [None] * LOOKS
        self.take = self._left.pop

    def settle(self) -> None:
        """Go on if kernels earned what the looks took, and otherwise give up."""
        earned = self._earned()
        self._saved += earned - self._settled if earned > self._settled else 0.0
        self._settled = earned
        price = SECONDS * LOOKS
        if self._saved < price:
            self._give_up()
        self._saved = min(max(self._saved - price, 0.0), _MOST_SAVED * price)
        self._left[:] = [None] * LOOKS


def viewed(a: Any, b: Any, views: Views) -> tuple[Any, Any]:
    """The views after all, for what looks at more than addresses."""
    in_a, in_b = views
    return (
        a if in_a is None else a.as_strided(*in_a, a.storage_offset()),
        b if in_b is None else b.as_strided(*in_b, b.storage_offset()),
    )

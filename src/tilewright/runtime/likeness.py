"""Tensors that are alike: in all that a launch depends on, but for their addresses.

Imports `base` and `runtime.arrays`. A tensor of PyTorch can change in place in every respect, so at
each call it is asked for everything again. Attribute by attribute that takes longer than the
launch; PyTorch has a check of its own that sees all of them in one call, written for the guards of
`torch.compile`.

    recognizes = recognizer((a, b))
    recognizes(c, d)    # True if `c` could stand for `a`, and `d` for `b`
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, partial
from operator import call
from typing import Any, cast

from tilewright.base import lazy
from tilewright.runtime.arrays import Array

Tensors = tuple[Any, ...]
Recognizer = Callable[..., bool]

_ask: Callable[[Recognizer, Any], bool] = cast(Any, call)


def likeness(tensor: Any) -> Hashable | None:
    """Say all that a launch depends on, but the address, of PyTorch's tensors and a GPU's arrays.

    `None` for all else, and for subclasses, whose attributes may have another meaning. Tensors
    that are yet to be negated differ from those whose memory holds their values, and so do those
    that want a gradient, as kernels may not write them at all times.
    """
    if isinstance(tensor, Array):
        raw = tensor.raw
        if raw is None or not tensor.device.startswith("cuda:"):
            return None
        memory = (raw.shape, raw.strides, raw.itemsize, raw.flags.writeable, tensor.device)
        return (Array, tensor.type_name, *memory)
    torch = lazy.loaded("torch")
    kind = cast("type[Any]", type(tensor))
    if torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.layout is not torch.strided or _is_transformed(tensor):
        return None
    memory = (tuple(tensor.shape), tensor.stride(), tensor.device, tensor.is_neg())
    return (kind, tensor.dtype, tensor.requires_grad, *memory)


def _is_transformed(tensor: Any) -> bool:
    """Tell a tensor of `torch.vmap`, `torch.func.grad` and the like, which has no storage."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return True
    return False


def recognizer(tensors: Tensors) -> Recognizer:
    """Make a function that tells whether as many tensors have the likeness of these, in order."""
    check = _check_of(lazy.loaded("torch"))
    if check is None or not tensors or any(isinstance(each, Array) for each in tensors):
        known = [likeness(each) for each in tensors]
        return lambda *others: [likeness(each) for each in others] == known
    if len(set(map(id, tensors))) == len(tensors):
        return check(tensors)
    # PyTorch's check refuses a tensor that it is given twice.
    one_by_one = [check((each,)) for each in tensors]
    return lambda *others: all(map(_ask, one_by_one, others))


@cache
def _check_of(torch: Any) -> Callable[[Tensors], Recognizer] | None:
    """Find PyTorch's check. It is no public part: `None` if it is absent, or not as expected."""

    def check(tensors: Tensors) -> Recognizer:
        guards = torch._C._dynamo.guards.TensorGuards
        return guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check

    try:
        return check if _sees_differences(check, torch) else None
    except Exception:  # Whatever another version may do.
        return None


def _sees_differences(check: Callable[[Tensors], Recognizer], torch: Any) -> bool:
    empty = partial(torch.empty, device="cpu", dtype=torch.float32)
    pairs = torch.zeros((2, 3), device="cpu", dtype=torch.complex64)
    different = (
        (empty(2, 3), empty(2, 3).int()),
        (empty(2, 3), empty(4, 3)),
        (empty(2, 3), empty(3, 2).t()),
        (empty(2, 3), torch.empty((2, 3), device="meta", dtype=torch.float32)),
        (empty(2, 3), torch.nn.Parameter(empty(2, 3), requires_grad=False)),
        (empty(2, 3), empty(2, 3).requires_grad_()),
        (empty(2, 3).requires_grad_(), empty(2, 3)),
        (empty(2, 3), empty(2, 3).to_sparse()),
        (empty(2, 3), None),
        (pairs.imag, pairs.conj().imag),  # the latter is yet to be negated
    )
    return check((empty(2, 3),))(empty(2, 3)) is True and not any(
        check((one,))(other) for one, other in different
    )

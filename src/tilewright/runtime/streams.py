"""Streams: where a call's launches go, and how they stand to what others do with its arrays.

May import `base`, `runtime.arrays` and `runtime.cuda_driver`. docs/launching.md tells users the
rule, which is:

- A call goes to the stream that it is given; else to PyTorch's current one, if an argument is a
  tensor of PyTorch on a GPU; else to the one that an argument names (`__cuda_array_interface__`,
  version 3), which is CuPy's current one; else to PyTorch's current one, or the default stream.
- It waits for what was done before with arrays that are not PyTorch's: those with `__dlpack__` are
  told the stream, and the streams that arrays name are waited for.
- These streams wait for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from tilewright.base import lazy
from tilewright.base.errors import LaunchError
from tilewright.runtime.arrays import (
    Access,
    Array,
    Unseen,
    describe,
    gpu_of,
    is_torch,
    named_stream,
)
from tilewright.runtime.cuda_driver import LEGACY_STREAM, Gpu

# Gives the handle of a stream; `None`, and 0, are the default stream.
Source = Callable[[], int | None]


@dataclass(frozen=True)
class Received:
    """A call's arguments, in which arrays of a GPU are described unless they are PyTorch's.

    `ordinal` is the number of the GPU, and `stream` gives where the call goes.
    """

    arguments: tuple[Any, ...]
    ordinal: int
    stream: Source

    @contextmanager
    def ordered(self, find: Callable[[int], Gpu]) -> Generator[None]:
        """Order what a block launches after and before what is done with the arrays elsewhere."""
        own = exchanged(self.stream())
        arrays = [each for each in self.arguments if isinstance(each, Array)]
        others = {each.stream for each in arrays if each.stream is not None} - {own}
        for other in others:
            find(self.ordinal).order(other, own)
        yield
        for other in others:
            find(self.ordinal).order(own, other)


def receive(
    arguments: Sequence[Any], asked: int | None, locate: Callable[[int], int | None]
) -> Received:
    """Choose the stream of a call, and ask for its arrays; what cannot be seen is an `Unseen`.

    `asked` is the stream that the call is given, `locate` tells which GPU an address is of.
    """
    on_gpu = [
        (each, ordinal) for each in arguments if (ordinal := gpu_of(each, locate)) is not None
    ]
    ordinal = on_gpu[0][1] if on_gpu else 0
    if asked is None and not any(is_torch(each) for each, _ in on_gpu):
        named = (named_stream(each) for each, _ in on_gpu)
        asked = next((stream for stream in named if stream is not None), None)
    stream = current_stream(ordinal) if asked is None else constant(asked)
    access = Access(exchanged(stream()), locate)
    return Received(tuple(_seen(each, access) for each in arguments), ordinal, stream)


def _seen(argument: Any, access: Access) -> Any:
    if is_torch(argument):
        return argument
    try:
        array = None if _is_plain(argument) else describe(argument, access)
    except Unseen as why:
        return why
    on_gpu = array is not None and array.device.startswith("cuda:")
    return array if on_gpu else argument


def _is_plain(argument: Any) -> bool:
    return isinstance(argument, int | float | np.ndarray)


def current_stream(ordinal: int) -> Source:
    """Give the function that tells PyTorch's current stream on a GPU, else the default one."""
    torch = lazy.loaded("torch")
    if torch is None or not torch.cuda.is_available():
        return constant(None)
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return partial(raw, ordinal)
    return lambda: torch.cuda.current_stream(ordinal).cuda_stream


def constant(handle: int | None) -> Source:
    """Give a function that tells one stream."""
    return lambda: handle


def exchanged(handle: int | None) -> int:
    """Spell a stream as DLPack and `__cuda_array_interface__` do, which have no 0."""
    return handle or LEGACY_STREAM


def stream_handle(stream: Any) -> int:
    """Read a stream's handle: a number, `__cuda_stream__`, or a stream of PyTorch, CuPy or Numba.

    Raises `LaunchError` (`bad-option`) for what is none.
    """
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A tuple in the first version of the protocol, a method in all later ones.
        _, handle = cast(Any, protocol() if callable(protocol) else protocol)
        return int(handle)
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            handle = getattr(stream, name)
            return int(getattr(handle, "value", handle) or 0)
    if hasattr(stream, "getPtr"):  # of cuda.bindings
        return int(stream)
    raise LaunchError(
        "the launch option 'stream' cannot be read",
        code="bad-option",
        expected="a stream's handle as a number, an object with __cuda_stream__, or a stream of "
        "PyTorch, CuPy or Numba",
        found=repr(stream),
    )

"""Calls that `torch.compile` is to leave alone: a launch is no operation that it could trace.

Imports `base`. `torch.compiler.disable` would say so too, but imports the whole compiler, for all
who never use it; what it sets is set here without.
"""

from __future__ import annotations

from contextlib import suppress
from types import FunctionType
from typing import Any

from tilewright.base import lazy

_MARK = "_torchdynamo_disable"
_REASON = "it launches kernels of Tilewright"


def leave_untraced(function: Any) -> None:
    """Have the graph of `torch.compile` broken at a function, which is then run as it is.

    Without PyTorch, or with one whose compiler works otherwise, nothing is changed.
    """
    assert isinstance(function, FunctionType)
    torch: Any = lazy.loaded("torch")
    if torch is None or _MARK in vars(function):
        return
    # No part of PyTorch that is promised: another version may lack it.
    with suppress(Exception):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(function.__code__, skip)  # with all that it calls
        vars(function).update({_MARK: True, f"{_MARK}_msg": _REASON})

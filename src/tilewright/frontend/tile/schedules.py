"""How a program would divide its work among warps: plans that change no result.

May import the modules of `frontend`. A program that gives one is read as it stands; its threads do
everything together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.frontend.tile.frames import Ignored
from tilewright.frontend.tile.options import OPERATION_NAME


class _Plan:
    """A part of a plan, as it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


class WSRole(_Plan):
    """A group of warps, and what they do."""


class WSPipeline(_Plan):
    """Buffers that are handed on between roles, and how many versions there are."""


class WSScope(_Plan):
    """What roles do in a scope of the program."""

    ROOT = "root"


class WSSchedule(_Plan):
    """A plan: roles, pipelines and scopes."""


@dataclass(frozen=True)
class WSSync:
    """A point at which roles meet."""

    kind: str
    pipeline: Any
    stage: int = 0

    @classmethod
    def producer_acquire(cls, pipeline: Any, stage: int = 0) -> WSSync:
        """Wait for room."""
        return cls("producer_acquire", pipeline, stage)

    @classmethod
    def producer_commit(cls, pipeline: Any, stage: int = 0) -> WSSync:
        """Hand on what is filled."""
        return cls("producer_commit", pipeline, stage)

    @classmethod
    def consumer_wait(cls, pipeline: Any, stage: int = 0) -> WSSync:
        """Wait for what is filled."""
        return cls("consumer_wait", pipeline, stage)

    @classmethod
    def consumer_release(cls, pipeline: Any, stage: int = 0) -> WSSync:
        """Give room back."""
        return cls("consumer_release", pipeline, stage)


def ws_op(op_id: str) -> Ignored:
    """Name the statements of a `with`, for a plan to refer to."""
    del op_id
    return Ignored()


def annotate(*plans: Any) -> None:
    """Take a plan; it changes no result."""
    del plans


FUNCTIONS: dict[str, Any] = {
    **{each.__name__: each for each in (WSRole, WSPipeline, WSScope, WSSchedule, WSSync, ws_op)},
    "annotate_ws_schedule": annotate,
    "annotate_ws_pipeline_depth": annotate,
    "WSID": OPERATION_NAME,
}

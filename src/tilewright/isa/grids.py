"""Grids that are launched before the one in front of them has ended (PTX ISA 9.7.13.13).

May import `base` and `isa.declaration`. A launch with `programmatic_stream_serialization` may begin
when every CTA of the grid in front of it has said so, or has exited; what that grid writes is seen
after the wait alone. The simulator runs one grid after another: there is nothing to wait for.

    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
"""

from __future__ import annotations

from tilewright.base.targets import since
from tilewright.isa.declaration import Declaration, Form, Order, declare
from tilewright.isa.machine import Machine

_SECTION = '9.7.13.13 "griddepcontrol"'


def _nothing(m: Machine, form: Form) -> None:
    """Do nothing: what is waited for has happened before the grid begins."""


def _control(action: str, summary: str) -> Declaration:
    return declare(
        "griddepcontrol",
        action,
        summary=summary,
        section=_SECTION,
        targets=since(90),
        compute=_nothing,
        # Between CTAs of one grid neither orders anything.
        order=Order(proxy="none"),
    )


griddepcontrol_launch_dependents = _control(
    "launch_dependents",
    "Let the grid that depends on this one begin, once all CTAs have said so or have exited.",
)
griddepcontrol_wait = _control(
    "wait",
    "Wait until the grids that this one depends on have ended, and see what they wrote.",
)

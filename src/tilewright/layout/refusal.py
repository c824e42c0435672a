"""The one way in which this folder refuses a layout.

Imports only `base.errors`.

    >>> bad_layout("no", expected="yes").code
    'bad-layout'
"""

from __future__ import annotations

from tilewright.base.errors import FrontendError


def bad_layout(
    message: str, *, expected: str | None = None, found: str | None = None, hint: str | None = None
) -> FrontendError:
    """Build the error for a layout that is malformed or does not fit; the caller raises it."""
    return FrontendError(message, code="bad-layout", expected=expected, found=found, hint=hint)

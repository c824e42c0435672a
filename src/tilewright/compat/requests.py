"""What programs written for other packages build to ask for a target.

Imports `base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.base.targets import requested_arch


def Target(request: str | Mapping[str, Any], host: object = None) -> str | Mapping[str, Any]:
    """Check a request for a target and give it back, as `compile` takes it.

    `host` is accepted and has no meaning here: host statements run in Python. Raises
    `TargetError` (`unknown-target`).
    """
    requested_arch(request)
    return request

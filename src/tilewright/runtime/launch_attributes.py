"""The options of a launch as the attributes that `cuLaunchKernelEx` takes.

May import `base`, `ir` and `runtime.host`. The structures are those of cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tilewright.base.errors import LaunchError
from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr
from tilewright.runtime.host import Extents, Values, evaluate


class _Window(ctypes.Structure):
    _fields_ = (
        ("base_ptr", ctypes.c_void_p),
        ("num_bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit_prop", ctypes.c_int),
        ("miss_prop", ctypes.c_int),
    )


class _Event(ctypes.Structure):
    _fields_ = (("event", ctypes.c_void_p), ("flags", ctypes.c_int), ("trigger", ctypes.c_int))


class _Value(ctypes.Union):
    _fields_ = (
        ("pad", ctypes.c_char * 64),
        ("number", ctypes.c_int),
        ("extents", ctypes.c_uint * 3),
        ("domains", ctypes.c_ubyte * 2),
        ("window", _Window),
        ("event", _Event),
    )


class Attribute(ctypes.Structure):
    """`CUlaunchAttribute`."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", _Value))


class Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


# CUlaunchAttributeID
_CLUSTER = 4
PREFERRED_CLUSTER = 11
_NUMBERS = {
    "cooperative": 2,
    "cluster_scheduling_policy": 5,
    "programmatic_stream_serialization": 6,
    "priority": 8,
    "mem_sync_domain": 10,
    "preferred_shared_memory_carveout": 14,
    "nvlink_util_centric_scheduling": 16,
    "portable_cluster_size_mode": 17,
    "shared_memory_mode": 18,
}
_EVENTS = {"programmatic_event": 7, "launch_completion_event": 12}
_WINDOW = 1
_DOMAIN_MAP = 9
# Enumerations that may be given by name (CUclusterSchedulingPolicy, CUlaunchMemSyncDomain).
_NAMED = {
    "cluster_scheduling_policy": ("default", "spread", "load_balancing"),
    "mem_sync_domain": ("default", "remote"),
}
_PROPERTIES = ("normal", "streaming", "persisting")  # CUaccessProperty

Pair = tuple[int, Callable[[_Value], None]]


def attributes(
    options: Mapping[str, Any],
    cluster: Extents | None,
    values: Values,
    location: Location | None,
) -> ctypes.Array[Attribute]:
    """Make the attributes of a launch; `cluster` is `None` where the kernel fixes it or has none.

    Raises `LaunchError` (`bad-option`) for an option that cannot be read.
    """
    pairs: list[Pair] = []
    if cluster is not None:
        pairs.append((_CLUSTER, _extents(cluster)))
    for name, given in options.items():
        if given is None or name == "stream":
            continue
        try:
            pairs.append(_attribute(name, given, values))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise LaunchError(
                f"the launch option {name!r} cannot be read",
                code="bad-option",
                location=location,
                found=f"{given!r} ({error})",
            ) from error
    made = (Attribute * len(pairs))()
    for attribute, (number, fill) in zip(made, pairs, strict=True):
        attribute.id = number
        fill(attribute.value)
    return made


def _attribute(name: str, given: Any, values: Values) -> Pair:
    if name == "preferred_cluster":
        parts = cast("Sequence[Any]", given if isinstance(given, Sequence) else (given,))
        x, y, z = (*(_number(each, values) for each in parts), 1, 1)[:3]
        return PREFERRED_CLUSTER, _extents((x, y, z))
    if name in _EVENTS:
        return _EVENTS[name], _event(given)
    if name == "mem_sync_domain_map":
        default, remote = (int(each) for each in given)
        return _DOMAIN_MAP, lambda value: _set_domains(value, default, remote)
    if name == "access_policy_window":
        return _WINDOW, _window(given)
    number = _NAMED[name].index(given) if isinstance(given, str) else _number(given, values)
    return _NUMBERS[name], lambda value: setattr(value, "number", number)


def _number(given: Any, values: Values) -> int:
    return int(evaluate(given, values)) if isinstance(given, Expr) else int(given)


def _extents(extents: Extents) -> Callable[[_Value], None]:
    return lambda value: setattr(value, "extents", (ctypes.c_uint * 3)(*extents))


def _set_domains(value: _Value, default: int, remote: int) -> None:
    value.domains = (ctypes.c_ubyte * 2)(default, remote)


def _event(given: Any) -> Callable[[_Value], None]:
    """Read an event: its handle, an event of PyTorch, or (event, flags, trigger at the start)."""
    parts = cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
    event, flags, trigger = (*parts, 0, 0)[:3]
    handle = int(event if isinstance(event, int) else event.cuda_event)
    return lambda value: setattr(value, "event", _Event(handle, int(flags), int(trigger)))


def _window(given: Any) -> Callable[[_Value], None]:
    fields = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else vars(given))

    def property_of(name: str) -> int:
        kind = fields[name]
        return _PROPERTIES.index(kind) if isinstance(kind, str) else int(kind)

    window = _Window(
        int(fields["base_ptr"]),
        int(fields["num_bytes"]),
        float(fields["hit_ratio"]),
        property_of("hit_prop"),
        property_of("miss_prop"),
    )
    return lambda value: setattr(value, "window", window)

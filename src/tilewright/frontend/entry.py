"""The entry of a kernel: how it is launched, and where it begins.

May import `base`, `ir` and the modules of this folder below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError, LaunchError
from tilewright.base.locations import Location
from tilewright.base.targets import MAX_BLOCK, MAX_THREADS
from tilewright.frontend.annotations import parameter_type
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.values import as_tuple, lift_index
from tilewright.ir.expressions import Expr, as_constant, cast, int32
from tilewright.ir.statements import Launch
from tilewright.ir.types import Type

_POLICIES = ("default", "spread", "load_balancing")
_AXES = ("x", "y", "z")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | int) and value in (0, 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(as_tuple(value)) == 2


def _is_cluster(value: Any) -> bool:
    parts = as_tuple(value)
    return 1 <= len(parts) <= 3 and all(_is_number(each) and each > 0 for each in parts)


# What the options of a launch may be, beside `None`.
_FLAG = ("True or False", _is_flag)
_NUMBER = ("an integer, of the driver's enumeration", _is_number)
_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "preferred_cluster": ("one to three positive integers", _is_cluster),
    "cooperative": _FLAG,
    "programmatic_stream_serialization": _FLAG,
    "nvlink_util_centric_scheduling": _FLAG,
    "cluster_scheduling_policy": (", ".join(_POLICIES), _POLICIES.__contains__),
    "priority": ("an integer", _is_number),
    "mem_sync_domain": ('"default", "remote", 0 or 1', ("default", "remote", 0, 1).__contains__),
    "mem_sync_domain_map": ("two integers", _is_pair),
    "preferred_shared_memory_carveout": (
        "a percentage, 0 to 100",
        lambda value: _is_number(value) and 0 <= value <= 100,
    ),
    "portable_cluster_size_mode": _NUMBER,
    "shared_memory_mode": _NUMBER,
}


@dataclass(frozen=True, eq=False)
class LaunchConfig:
    """How a kernel is launched: each of `grid`, `block` and `cluster` a number or 1 to 3 of them.

    The further fields are those of CUDA's launch attributes.
    """

    grid: Any = 1
    block: Any = 1
    cluster: Any = 1
    preferred_cluster: Any = None
    dynamic_smem_bytes: Any = 0
    stream: Any = None
    cooperative: bool = False
    programmatic_stream_serialization: bool = False
    cluster_scheduling_policy: str = "default"
    priority: int | None = None
    mem_sync_domain: Any = None
    mem_sync_domain_map: Any = None
    access_policy_window: Any = None
    preferred_shared_memory_carveout: int | None = None
    nvlink_util_centric_scheduling: bool = False
    portable_cluster_size_mode: Any = None
    shared_memory_mode: Any = None
    programmatic_event: Any = None
    launch_completion_event: Any = None

    def __post_init__(self) -> None:
        for name, (expected, fits) in _OPTIONS.items():
            given = getattr(self, name)
            if given is not None and not fits(given):
                raise LaunchError(
                    f"the launch option {name!r} is given as what it is not",
                    code="launch-shape",
                    location=argument_place(name),
                    expected=expected,
                    found=repr(given),
                )
        shapes = [_extents(name, getattr(self, name)) for name in ("grid", "block", "cluster")]
        _check(*shapes)
        self._dynamic_shared()

    def replace(self, **changes: Any) -> LaunchConfig:
        """Copy with other values of some fields."""
        return replace(self, **changes)

    def launch(self) -> Launch:
        """Give the launch in the IR."""
        shapes = (_extents(name, getattr(self, name)) for name in ("grid", "block", "cluster"))
        grid, block, cluster = shapes
        shared = self._dynamic_shared()
        own = ("grid", "block", "cluster", "dynamic_smem_bytes")
        options = tuple(
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if each.name not in own and getattr(self, each.name) != each.default
        )
        return Launch(grid, block, cluster, shared, options, location=here())

    def _dynamic_shared(self) -> Expr:
        name = "dynamic_smem_bytes"
        place = argument_place(name)
        asked = lift_index(self.dynamic_smem_bytes, name, place)
        number = as_constant(asked)
        if number is not None and number < 0:
            raise LaunchError(
                f"{name} is a number of bytes",
                code="launch-shape",
                location=place,
                found=str(number),
            )
        return cast(asked, INT32)


def _extents(name: str, value: Any) -> tuple[Expr, Expr, Expr]:
    parts = as_tuple(value)
    if not 1 <= len(parts) <= 3:
        raise LaunchError(
            f"the {name} of a launch has one to three extents",
            code="launch-shape",
            location=argument_place(name),
            found=f"{len(parts)} extents",
        )
    found = [cast(lift_index(each, "an extent", argument_place(name)), INT32) for each in parts]
    found += [int32(1)] * (3 - len(found))
    for each in found:
        number = as_constant(each)
        if number is not None and number < 1:
            raise LaunchError(
                f"the extents of the {name} of a launch are positive",
                code="launch-shape",
                location=argument_place(name),
                found=str(number),
            )
    return found[0], found[1], found[2]


def _check(grid: tuple[Expr, ...], block: tuple[Expr, ...], cluster: tuple[Expr, ...]) -> None:
    """Hold a launch to what is known of it now."""
    threads = [as_constant(each) for each in block]
    known = prod(int(each) for each in threads if each is not None)
    if known > MAX_THREADS or int(threads[2] or 1) > MAX_BLOCK[2]:
        raise LaunchError(
            "the block is larger than any that can be launched",
            code="launch-shape",
            location=argument_place("block"),
            expected=f"at most {MAX_THREADS} threads, of which at most {MAX_BLOCK[2]} along z",
            found=f"{known} threads, {threads[2]} along z",
        )
    for axis, whole, part in zip(_AXES, grid, cluster, strict=True):
        total, step = as_constant(whole), as_constant(part)
        if total is not None and step is not None and int(total) % int(step):
            raise LaunchError(
                f"the grid is not made of whole clusters along {axis}",
                code="launch-shape",
                location=argument_place("cluster"),
                expected=f"a multiple of {step}",
                found=str(total),
            )


@dataclass(frozen=True)
class KernelAttributes:
    """Attributes of a kernel that bound what the compiler may assume or use."""

    min_blocks_per_sm: int | None = None
    max_blocks_per_cluster: int | None = None
    max_registers_per_thread: int | None = None
    required_block_size: Any = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            given = getattr(self, name)
            if given is not None and not (_is_number(given) and 1 <= given <= most):
                raise self._wrong(name, f"1 … {most}", given)
        block = self.required_block_size
        if block is not None and not _is_cluster(block):
            raise self._wrong("required_block_size", "one to three positive integers", block)

    def _wrong(self, name: str, expected: str, given: Any) -> LaunchError:
        return LaunchError(
            f"the kernel attribute {name!r} is given as what it is not",
            code="launch-shape",
            location=argument_place(name),
            expected=expected,
            found=repr(given),
        )

    def check(self, launch: Launch) -> None:
        """Hold a launch to the attributes, as far as it is known.

        Raises `LaunchError` (`launch-shape`).
        """
        if self.required_block_size is not None:
            required = (*as_tuple(self.required_block_size), 1, 1)[:3]
            known = [as_constant(each) for each in launch.block]
            if any(k is not None and k != r for k, r in zip(known, required, strict=True)):
                raise self._unmet("block", str(required), str(tuple(known)))
        clusters = [as_constant(each) for each in launch.cluster]
        count = prod(int(each) for each in clusters if each is not None)
        if self.max_blocks_per_cluster is not None and count > self.max_blocks_per_cluster:
            expected = f"at most {self.max_blocks_per_cluster} blocks"
            raise self._unmet("cluster", expected, f"{count} blocks")

    def _unmet(self, what: str, expected: str, found: str) -> LaunchError:
        return LaunchError(
            f"the {what} of the launch is not what the kernel's attributes say",
            code="launch-shape",
            location=here(),
            expected=expected,
            found=found,
        )

    def attributes(self) -> tuple[tuple[str, Any], ...]:
        """List the attributes that are given."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        if (block := found["required_block_size"]) is not None:
            found["required_block_size"] = (*as_tuple(block), 1, 1)[:3]
        return tuple((name, value) for name, value in found.items() if value is not None)


# The largest value of each attribute that is a number: what an SM, a cluster and a thread take.
_MOST = {"min_blocks_per_sm": 32, "max_blocks_per_cluster": 16, "max_registers_per_thread": 255}


@dataclass(frozen=True)
class Entry:
    """The entry of a kernel: a statement of its own, or the frame of a `with`.

    `indices` are what the names after `as` stand for.
    """

    launch: Launch
    attributes: tuple[tuple[str, Any], ...]
    location: Location | None
    indices: tuple[Expr, ...] = ()


def device_entry(
    launch: LaunchConfig | None = None,
    kernel_attrs: Any = None,
    backend_config: Any = None,
) -> Entry:
    """Begin a kernel, launched as given; as a statement or as the frame of a `with`.

    Raises `FrontendError` (`bad-call`) without a launch.
    """
    if not isinstance(launch, LaunchConfig):
        raise FrontendError(
            "a kernel is entered with a launch",
            code="bad-call",
            location=argument_place("launch", 0),
            expected="launch=T.cuda.LaunchConfig(grid=…, block=…)",
            found=repr(launch),
        )
    if not isinstance(kernel_attrs, KernelAttributes | None):
        raise FrontendError(
            "the attributes of a kernel are not given as such",
            code="bad-call",
            location=argument_place("kernel_attrs", 1),
            expected="kernel_attrs=T.cuda.KernelAttributes(…)",
            found=repr(kernel_attrs),
        )
    if backend_config is not None:
        raise FrontendError(
            "a kernel has no configuration of its own for a backend",
            code="bad-call",
            location=argument_place("backend_config", 2),
            expected="backend_config=None",
            found=repr(backend_config),
            hint="tilewright.compile(…) takes the target and the backend",
        )
    made = launch.launch()
    if kernel_attrs is not None:
        kernel_attrs.check(made)
    return Entry(made, () if kernel_attrs is None else kernel_attrs.attributes(), here())


@dataclass(frozen=True)
class KernelParameters:
    """The parameters of a kernel where they are not those of the program."""

    types: dict[str, Type]


def kernel_params(**kinds: Any) -> KernelParameters:
    """Set the parameters of a kernel, by name, where they are not those of the program."""
    place = here()
    return KernelParameters(
        {name: parameter_type(kind, name, place or Location("", 0)) for name, kind in kinds.items()}
    )


def func_attr(attributes: dict[str, Any]) -> None:
    """Set attributes of the kernel: its "name", the bytes of shared memory that it lays out."""
    known = ("name", "shared_bytes")
    if unknown := attributes.keys() - set(known):
        raise FrontendError(
            f"a kernel has no attribute {sorted(unknown)[0]!r}",
            code="bad-call",
            location=here(),
            expected=", ".join(known),
        )
    current().attributes.update(attributes)

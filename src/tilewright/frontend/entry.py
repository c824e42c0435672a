"""The entry of a kernel: how it is launched, and where it begins.

May import `base`, `ir` and the modules of this folder below it.
"""

from __future__ import annotations

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
        carveout = self.preferred_shared_memory_carveout
        if carveout is not None and not 0 <= carveout <= 100:
            raise LaunchError(
                "a carveout is a percentage",
                code="launch-shape",
                location=argument_place("preferred_shared_memory_carveout"),
                found=str(carveout),
            )
        if self.cluster_scheduling_policy not in _POLICIES:
            raise LaunchError(
                f"there is no scheduling policy {self.cluster_scheduling_policy!r}",
                code="launch-shape",
                location=argument_place("cluster_scheduling_policy"),
                expected=", ".join(_POLICIES),
            )
        shapes = [_extents(name, getattr(self, name)) for name in ("grid", "block", "cluster")]
        _check(*shapes)

    def replace(self, **changes: Any) -> LaunchConfig:
        """Copy with other values of some fields."""
        return replace(self, **changes)

    def launch(self) -> Launch:
        """Give the launch in the IR."""
        shapes = (_extents(name, getattr(self, name)) for name in ("grid", "block", "cluster"))
        grid, block, cluster = shapes
        shared = cast(lift_index(self.dynamic_smem_bytes), INT32)
        own = ("grid", "block", "cluster", "dynamic_smem_bytes")
        options = tuple(
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if each.name not in own and getattr(self, each.name) != each.default
        )
        return Launch(grid, block, cluster, shared, options, location=here())


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

    def attributes(self) -> tuple[tuple[str, Any], ...]:
        """List the attributes that are given."""
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
        return tuple((name, value) for name, value in pairs if value is not None)


@dataclass(frozen=True)
class Entry:
    """The entry of a kernel: a statement of its own, or the frame of a `with`."""

    launch: Launch
    attributes: tuple[tuple[str, Any], ...]
    location: Location | None


def device_entry(
    launch: LaunchConfig | None = None,
    kernel_attrs: KernelAttributes | None = None,
    backend_config: Any = None,
) -> Entry:
    """Begin a kernel, launched as given; as a statement or as the frame of a `with`.

    Raises `FrontendError` (`bad-call`) without a launch.
    """
    if not isinstance(launch, LaunchConfig):
        raise FrontendError(
            "a kernel is entered with a launch",
            code="bad-call",
            location=here(),
            expected="launch=T.cuda.LaunchConfig(grid=…, block=…)",
            found=repr(launch),
        )
    attributes = () if kernel_attrs is None else kernel_attrs.attributes()
    return Entry(launch.launch(), attributes, here())


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

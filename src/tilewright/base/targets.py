"""Targets: the GPU architectures that a kernel is compiled for, and their chips' limits.

Imports only `base.errors`. Limits are those of the CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; SM counts are those of the chip a target is named after.

    >>> target("sm_90a").shared_bytes
    232448
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from tilewright.base.errors import TargetError


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture, with the limits that a launch on it must keep.

    `capability` is ten times the compute capability (90 for 9.0); `suffix` is "a" for
    architecture-specific, "f" for family-specific instructions, else empty. Sizes are in
    bytes; `shared_bytes` is the opt-in limit of one CTA.
    """

    capability: int
    suffix: str
    chip: str
    multiprocessors: int
    shared_bytes: int
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    ctas_per_multiprocessor: int
    tensor_memory_columns: int = 0
    registers: int = 65536

    @property
    def arch(self) -> str:
        """Spell the target as the tools do, such as `sm_100a`."""
        return f"sm_{self.capability}{self.suffix}"

    def __str__(self) -> str:
        return self.arch


_KIB = 1024
# capability: chip, SMs, opt-in shared KiB, shared KiB per SM, threads per SM, CTAs per SM, TMEM
_CHIPS: dict[int, tuple[str, int, int, int, int, int, int]] = {
    75: ("T4", 40, 64, 64, 1024, 16, 0),
    80: ("A100", 108, 163, 164, 2048, 32, 0),
    86: ("A40", 84, 99, 100, 1536, 16, 0),
    87: ("Orin", 16, 163, 164, 1536, 16, 0),
    89: ("L40S", 142, 99, 100, 1536, 24, 0),
    90: ("H100", 132, 227, 228, 2048, 32, 0),
    100: ("B200", 148, 227, 228, 2048, 32, 512),
    103: ("B300", 160, 227, 228, 2048, 32, 512),
    110: ("Thor", 20, 227, 228, 1536, 24, 512),
    120: ("RTX PRO 6000", 188, 99, 100, 1536, 24, 0),
    121: ("GB10", 48, 99, 100, 1536, 24, 0),
}
_SUFFIXES = {90: ("", "a"), **dict.fromkeys((100, 103, 110, 120, 121), ("", "a", "f"))}
_ARCH = re.compile(r"sm_(\d+)([af]?)$")

# What a launch may be on all targets alike; more than 8 CTAs of a cluster are not portable.
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
# What memory is aligned to on every chip: the shared memory of a CTA, of which the first KiB is
# the system's, and what the driver allocates (CUDA C++ Programming Guide, "Device Memory
# Accesses").
SHARED_ALIGNMENT = 1024
GLOBAL_ALIGNMENT = 256
MAX_CLUSTER = 16
PORTABLE_CLUSTER = 8  # what every chip that has clusters can launch
CLUSTER_SINCE = 90

# The order in which a program that only asks for "cuda" is given a target without a GPU.
DEFAULT_ORDER = ("sm_100a", "sm_90a", "sm_120a", "sm_89", "sm_80")

# The tags of other tools that programs in the field use.
_TAGS = {
    "nvidia/nvidia-a100": "sm_80",
    "nvidia/nvidia-h100": "sm_90a",
    "nvidia/nvidia-h200": "sm_90a",
    "nvidia/nvidia-b200": "sm_100a",
}


@cache
def target(name: str) -> Target:
    """Look a target up by its name, such as `sm_90a`.

    Raises `TargetError` if there is none, naming those there are.
    """
    match = _ARCH.match(_TAGS.get(name, name))
    if match is not None and int(match[1]) in _CHIPS:
        capability, suffix = int(match[1]), match[2]
        if suffix in _SUFFIXES.get(capability, ("",)):
            chip, sms, shared, shared_sm, threads, ctas, columns = _CHIPS[capability]
            return Target(
                capability,
                suffix,
                chip,
                sms,
                shared * _KIB,
                shared_sm * _KIB,
                threads,
                ctas,
                columns,
            )
    raise TargetError(
        f"there is no target {name!r}",
        code="unknown-target",
        expected="one of " + ", ".join(known_targets()),
    )


def known_targets() -> tuple[str, ...]:
    """List the names of all targets, oldest first."""
    return tuple(f"sm_{c}{suffix}" for c in _CHIPS for suffix in _SUFFIXES.get(c, ("",)))


def launch_problem(
    grid: Sequence[int | None],
    block: Sequence[int | None],
    cluster: Sequence[int | None],
    target: Target,
) -> tuple[str, str, str] | None:
    """Say what of a launch's shape is wrong: what, what is expected, what was found.

    Each shape has three extents, `None` where they are not known. `None` stands for a launch
    that can be, as far as is known.
    """
    for what, shape, limits in (
        ("grid", grid, MAX_GRID),
        ("block", block, MAX_BLOCK),
        ("cluster", cluster, (MAX_CLUSTER,) * 3),
    ):
        if any(e is not None and not 1 <= e <= most for e, most in zip(shape, limits, strict=True)):
            return what, f"each extent from 1 to {limits}", _spell(shape)
    if _known_product(block) > MAX_THREADS:
        return "block", f"at most {MAX_THREADS} threads", _spell(block)
    if _known_product(cluster) > 1 and target.capability < CLUSTER_SINCE:
        return "cluster", f"no cluster, or sm_{CLUSTER_SINCE} or later", _spell(cluster)
    if _known_product(cluster) > MAX_CLUSTER:
        return "cluster", f"at most {MAX_CLUSTER} CTAs", _spell(cluster)
    pairs = zip(grid, cluster, strict=True)
    if any(g is not None and c is not None and g % c for g, c in pairs):
        return "grid", f"whole clusters of {_spell(cluster)}", _spell(grid)
    return None


def shared_problem(buffers: int, dynamic: int, target: Target) -> tuple[str, str] | None:
    """Say what of the shared memory of a CTA is wrong: what is expected, what was found.

    `buffers` are the bytes of the kernel's own buffers, `dynamic` those that its launch adds.
    """
    if dynamic < 0:
        return "a number of bytes", str(dynamic)
    if buffers + dynamic > target.shared_bytes:
        found = f"{buffers} bytes of buffers and {dynamic} of dynamic_smem_bytes"
        return f"at most {target.shared_bytes} bytes in all", found
    return None


def _known_product(shape: Sequence[int | None]) -> int:
    return prod(1 if extent is None else extent for extent in shape)


def _spell(shape: Sequence[int | None]) -> str:
    return f"({', '.join('?' if extent is None else str(extent) for extent in shape)})"


def requested_arch(request: str | Target | Mapping[str, Any] | None) -> str | None:
    """Read the architecture out of what a program gave as its target.

    Programs give a name (`sm_90a`), `"cuda"`, also with options (`"cuda -arch=sm_90a"`), a tag, or
    a mapping with `kind` and `arch`.
    `None` means that any target will do. Raises `TargetError` for anything else.
    """
    match request:
        case None | "cuda":
            return None
        case Target():
            return request.arch
        case str():
            words = request.split() or [request]
            options = (each.removeprefix("-arch=") for each in words if each.startswith("-arch="))
            name = next(options, words[0])
            return None if name == "cuda" else target(name.removeprefix("cuda:")).arch
        case {"arch": str(arch)}:
            return target(arch).arch
        case {"kind": "cuda"}:
            return None
        case _:
            pass
    raise TargetError(
        f"cannot read a target out of {request!r}",
        code="unknown-target",
        expected='a name such as "sm_100a", "cuda", or {"kind": "cuda", "arch": "sm_100a"}',
    )


@dataclass(frozen=True, slots=True)
class Availability:
    """The targets that have an instruction, as the PTX ISA's "Target ISA Notes" state them.

    Either every target from capability `since` on, or, for architecture-specific features, the
    targets named in `arches`; `families` are the capabilities whose `f` targets, and those of
    the same family that follow, have it too.
    """

    since: int = 0
    arches: tuple[str, ...] = ()
    families: tuple[int, ...] = ()

    def __contains__(self, where: Target) -> bool:
        if not self.arches and not self.families:
            return where.capability >= self.since
        if where.arch in self.arches:
            return True
        same_family = any(
            where.capability // 10 == family // 10 and where.capability >= family
            for family in self.families
        )
        return bool(where.suffix) and same_family

    def __str__(self) -> str:
        if not self.arches and not self.families:
            return f"sm_{self.since} or later"
        return ", ".join(
            (*self.arches, *(f"sm_{family}f and its family" for family in self.families))
        )


def since(capability: int) -> Availability:
    """State that every target from that capability on has an instruction."""
    return Availability(since=capability)


def only(*arches: str, families: tuple[int, ...] = ()) -> Availability:
    """State that just these architecture-specific targets have an instruction."""
    return Availability(arches=arches, families=families)

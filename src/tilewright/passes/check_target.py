"""Check that a target has what a kernel uses, or choose one that has.

May import `base`, `isa` and `ir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.base.errors import TargetError
from tilewright.base.locations import Location
from tilewright.base.targets import DEFAULT_ORDER, Target
from tilewright.base.targets import target as target_named
from tilewright.ir.expressions import Expr, as_constant
from tilewright.ir.statements import Apply, Instruct, Kernel, Launch, Program
from tilewright.ir.visit import walk_statements
from tilewright.isa.declaration import Form

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the same for
# every target that there is.
_THREADS = 1024
_BLOCK = (1024, 1024, 64)
_GRID = (2**31 - 1, 65535, 65535)
_PORTABLE_CLUSTER, _CLUSTER = 8, 16
_FIRST_WITH_CLUSTERS = 90


def check_target(program: Program, target: Target) -> Program:
    """Return the program as it is, if the target has its instructions and allows its launches.

    Raises `TargetError`: missing-instruction or resource-limit, at the user's line.
    """
    for form, location in _instructions(program):
        if target not in form.targets:
            raise TargetError(
                f"{target} does not have {form.text}",
                code="missing-instruction",
                location=location,
                expected=str(form.targets),
                found=str(target),
            )
    for kernel in program.kernels:
        _check_launch(kernel, target)
    return program


def choose_target(program: Program) -> Target:
    """Choose the first of the usual targets that has every instruction of a program.

    Raises `TargetError` (no-target) if none has.
    """
    for name in DEFAULT_ORDER:
        target = target_named(name)
        if has_instructions(program, target):
            return target
    used = list({form: None for form, _ in _instructions(program)})
    notes = tuple(f"{form.text}: {form.targets}" for form in used if _is_special(form))
    raise TargetError(
        f"no target has every instruction of {program.name}",
        code="no-target",
        location=program.location,
        expected="instructions that one of " + ", ".join(DEFAULT_ORDER) + " has together",
        hint="name a target, or split the kernel",
        notes=notes,
    )


def has_instructions(program: Program, target: Target) -> bool:
    """Tell whether a target has every instruction of a program."""
    return all(target in form.targets for form, _ in _instructions(program))


def _instructions(program: Program) -> Iterator[tuple[Form, Location | None]]:
    for stmt in walk_statements(program):
        if isinstance(stmt, Apply | Instruct):
            yield stmt.form, stmt.location


def _is_special(form: Form) -> bool:
    return any(target_named(name) not in form.targets for name in DEFAULT_ORDER)


def _check_launch(kernel: Kernel, target: Target) -> None:
    launch = kernel.launch
    block = _extents(launch.block)
    _check_extents(launch, "block", block, _BLOCK)
    _check_extents(launch, "grid", _extents(launch.grid), _GRID)
    if None not in block and prod(each or 1 for each in block) > _THREADS:
        raise _limit(launch, "the block", f"at most {_THREADS} threads", _spell(block))
    cluster = _extents(launch.cluster)
    size = prod(each or 1 for each in cluster)
    if size > 1 and target.capability < _FIRST_WITH_CLUSTERS:
        expected = f"no cluster, or sm_{_FIRST_WITH_CLUSTERS} or later"
        raise _limit(launch, f"the cluster on {target}", expected, _spell(cluster))
    portable = not dict(launch.options).get("non_portable_cluster_size", False)
    most = _PORTABLE_CLUSTER if portable else _CLUSTER
    if size > most:
        raise _limit(launch, "the cluster", f"at most {most} CTAs", _spell(cluster))


def _check_extents(
    launch: Launch, what: str, extents: tuple[int | None, ...], most: tuple[int, ...]
) -> None:
    for axis, extent, limit in zip("xyz", extents, most, strict=True):
        if extent is not None and not 0 < extent <= limit:
            expected = f"1 to {limit} along {axis}"
            raise _limit(launch, f"the {what}", expected, _spell(extents))


def _extents(shape: tuple[Expr, Expr, Expr]) -> tuple[int | None, ...]:
    found = [as_constant(each) for each in shape]
    return tuple(int(each) if each is not None else None for each in found)


def _spell(extents: tuple[int | None, ...]) -> str:
    return f"({', '.join('?' if each is None else str(each) for each in extents)})"


def _limit(launch: Launch, what: str, expected: str, found: str) -> TargetError:
    return TargetError(
        f"{what} is not one that can be launched",
        code="resource-limit",
        location=launch.location,
        expected=expected,
        found=found,
    )

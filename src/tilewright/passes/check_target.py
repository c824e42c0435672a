"""Check that a target has what a kernel uses, or choose one that has.

May import `base`, `isa` and `ir`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.errors import TargetError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import (
    DEFAULT_ORDER,
    GLOBAL_ALIGNMENT,
    SHARED_ALIGNMENT,
    Target,
    launch_problem,
)
from tilewright.base.targets import target as target_named
from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Apply, Instruct, Kernel, Program
from tilewright.ir.types import PointerType, TensorType
from tilewright.ir.visit import walk_statements
from tilewright.isa.declaration import Form


def check_target(program: Program, target: Target) -> Program:
    """Return the program as it is, if the target has its instructions and allows its launches.

    Raises `TargetError`: missing-instruction or resource-limit, at the user's line.
    """
    _check_alignments(program)
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
    grid, block, cluster = map(_extents, (launch.grid, launch.block, launch.cluster))
    if problem := launch_problem(grid, block, cluster, target):
        what, expected, found = problem
        raise TargetError(
            f"the {what} is not one that can be launched on {target}",
            code="resource-limit",
            location=launch.location,
            expected=expected,
            found=found,
        )


def _check_alignments(program: Program) -> None:
    """Refuse to promise an alignment that memory need not have."""
    for param in program.params:
        if isinstance(param.type, TensorType | PointerType):
            _check_alignment(param, param.type.align, GLOBAL_ALIGNMENT, "an argument")
    for stmt in walk_statements(program):
        if isinstance(stmt, Allocate) and tensor_type(stmt.var).space is Space.SHARED:
            align = tensor_type(stmt.var).align
            _check_alignment(stmt.var, align, SHARED_ALIGNMENT, "shared memory", stmt.location)


def _check_alignment(
    var: Var, asked: int, most: int, what: str, where: Location | None = None
) -> None:
    if asked > most:
        raise TargetError(
            f"{var.name} is to be aligned more than {what} is",
            code="resource-limit",
            location=where or var.location,
            expected=f"at most {most} bytes, to which {what} is aligned on every chip",
            found=f"align={asked}",
        )


def _extents(shape: tuple[Expr, Expr, Expr]) -> tuple[int | None, ...]:
    found = [as_constant(each) for each in shape]
    return tuple(int(each) if each is not None else None for each in found)

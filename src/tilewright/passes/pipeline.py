"""The order of the passes: from the program as written to what both backends take.

May import the modules of this folder. Each entry is a function of that name in the file of
that name.

    lowered = lower(program, target("sm_90a"), Options())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.base.targets import Target
from tilewright.ir.statements import Program
from tilewright.ir.verify import verify
from tilewright.passes.allocate_shared import allocate_shared
from tilewright.passes.check_target import check_target
from tilewright.passes.contract_products import allow_no_contraction, contract_products
from tilewright.passes.expand_math import expand_math
from tilewright.passes.lower_division import lower_division
from tilewright.passes.lower_ids import lower_ids
from tilewright.passes.lower_tiles import lower_tiles
from tilewright.passes.lower_views import lower_views
from tilewright.passes.options import Options
from tilewright.passes.show_state import show_state
from tilewright.passes.simplify import simplify
from tilewright.passes.tile.allocate_tensor_memory import allocate_tensor_memory
from tilewright.passes.tile.choose_instructions import choose_instructions
from tilewright.passes.tile.insert_barriers import insert_barriers
from tilewright.passes.tile.lower_operations import lower_operations
from tilewright.passes.tile.merge_shared import merge_shared
from tilewright.passes.tile.notes import Note
from tilewright.passes.tile.pipeline_loops import pipeline_loops
from tilewright.passes.tile.rasterize import rasterize

__all__ = ["Note", "Options", "explain", "lower", "stages"]

_DEFAULT = Options()
Pass = Callable[[Program, Target, Options], Program]

# The tile dialect's: what they give is a program of the simt dialect.
TILE_PASSES: tuple[tuple[str, Pass], ...] = (
    ("rasterize", lambda program, target, options: rasterize(program)),
    (
        "pipeline_loops",
        lambda program, target, options: pipeline_loops(program, target, options.notes),
    ),
    (
        "choose_instructions",
        lambda program, target, options: choose_instructions(program, target),
    ),
    ("merge_shared", lambda program, target, options: merge_shared(program)),
    (
        "insert_barriers",
        lambda program, target, options: insert_barriers(program, target),
    ),
    ("lower_operations", lambda program, target, options: lower_operations(program, target)),
    (
        "allocate_tensor_memory",
        lambda program, target, options: allocate_tensor_memory(program, target),
    ),
)
PASSES: tuple[tuple[str, Pass], ...] = (
    ("check_target", lambda program, target, options: check_target(program, target)),
    ("lower_tiles", lambda program, target, options: lower_tiles(program)),
    (
        "contract_products",
        lambda program, target, options: (
            contract_products(program) if options.contract else allow_no_contraction(program)
        ),
    ),
    ("expand_math", lambda program, target, options: expand_math(program)),
    ("lower_views", lambda program, target, options: lower_views(program)),
    ("allocate_shared", lambda program, target, options: allocate_shared(program, target)),
    ("lower_ids", lambda program, target, options: lower_ids(program)),
    ("show_state", lambda program, target, options: show_state(program, options.dumps)),
    ("simplify", lambda program, target, options: simplify(program)),
    ("lower_division", lambda program, target, options: lower_division(program)),
)


def lower(program: Program, target: Target, options: Options = _DEFAULT) -> Program:
    """Lower a program for a target.

    Raises `TargetError`, `TileContractError` or `FrontendError` for what the program does wrong,
    `VerifyError` if it is malformed.
    """
    verify(program, "tile")
    for _, each in TILE_PASSES:
        program = each(program, target, options)
    verify(program, "high")
    for _, each in PASSES:
        program = each(program, target, options)
    verify(program, "lowered")
    return program


def explain(program: Program, target: Target, options: Options = _DEFAULT) -> tuple[Note, ...]:
    """Say what a program asks for that lowering it does not do, and why, in the program's order."""
    notes: list[Note] = []
    for _, each in TILE_PASSES:
        program = each(program, target, replace(options, notes=notes))
    return tuple(dict.fromkeys(notes))


def stages(program: Program, target: Target, options: Options = _DEFAULT) -> dict[str, Program]:
    """Lower a program, and keep what each pass gives, by the pass's name; nothing is verified."""
    found: dict[str, Program] = {}
    for name, each in (*TILE_PASSES, *PASSES):
        program = found[name] = each(program, target, options)
    return found

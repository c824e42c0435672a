"""What a mutation is, and the register of those that make them.

A mutator is a function of a `Source` and one of its sites that yields changes; it goes by what
instructions declare, and knows no kernel. `mutants` applies all of them everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sites import Edit, Site, Source, edited, reissued

from tilewright.ir.expressions import Expr
from tilewright.ir.statements import Instruct, Program
from tilewright.isa.declaration import Form
from tilewright.passes.lower_tiles import lower_tiles

Kinds = frozenset[str]

# Kinds of findings (`docs/checker.md`), by what a fault looks like from outside.
UNORDERED: Kinds = frozenset(
    (
        *("race", "missing-wait", "stage-overwritten", "uninitialised", "global-race"),
        *("mbarrier-phase", "tmem-lifecycle"),
    )
)
PROXY: Kinds = frozenset(
    ("missing-proxy-fence", "misplaced-proxy-fence", "missing-proxy-fence-war")
)
MBARRIER: Kinds = frozenset(
    (
        *("mbarrier-arrival", "mbarrier-tx", "mbarrier-phase", "mbarrier-init"),
        "mbarrier-init-visibility",
    )
)
HANGS: Kinds = MBARRIER | {"deadlock", "named-barrier", "divergent-collective"}
# Columns that are not allocated are out of bounds.
LIFETIME: Kinds = frozenset(("tmem-lifecycle", "tmem-access", "out-of-bounds"))
BOUNDS: Kinds = frozenset(("out-of-bounds", "tma-rules", "descriptor"))


@dataclass(frozen=True)
class Change:
    """A changed program: what was done, and the kinds of findings that call it by its name."""

    name: str
    program: Program
    kinds: Kinds


@dataclass(frozen=True)
class Mutant:
    """A program with one fault. `group` is its row in tables, `site` where it was changed."""

    group: str
    site: Site
    change: Change

    @property
    def name(self) -> str:
        """Tell it from the other mutants of its kernel."""
        return f"{self.site.name}: {self.change.name}"


Mutator = Callable[[Source, Site], Iterator[Change]]
# Those that work on tile operations, and those that work on instructions only.
_MUTATORS: dict[bool, list[tuple[str, Mutator]]] = {True: [], False: []}


def mutator(group: str, *, tiles: bool = False) -> Callable[[Mutator], Mutator]:
    """Register a mutator as one of a group; with `tiles` it is given tile operations as such."""

    def register(function: Mutator) -> Mutator:
        _MUTATORS[tiles].append((group, function))
        return function

    return register


def mutants_of(program: Program) -> Iterator[Mutant]:
    """Make every mutant of a program: of its tile operations, and of their instructions."""
    for tiles, mutators in _MUTATORS.items():
        source = Source(program if tiles else lower_tiles(program))
        for site in source.sites:
            for group, function in mutators:
                for change in function(source, site):
                    if change.program != source.program:
                        yield Mutant(group, site, change)


# ---------------------------------------------------------------------------- changing


def everywhere(source: Source, site: Site, edit: Edit) -> Program:
    """Edit a site at all its places."""
    return edited(source.program, dict.fromkeys(site.paths, edit))


def without(source: Source, site: Site) -> Program:
    """Leave a site out."""
    return everywhere(source, site, lambda _: ())


def twice(source: Source, site: Site) -> Program:
    """Do what stands at a site once more."""
    return everywhere(source, site, lambda stmt: (stmt, stmt))


def with_operand(
    source: Source, site: Site, position: int, change: Callable[[Expr], Expr]
) -> Program:
    """Change an operand of an instruction, or of that by which a wait loop polls."""

    def changed(each: Instruct) -> Instruct:
        operands = list(each.operands)
        operands[position] = change(operands[position])
        return replace(each, operands=tuple(operands))

    return everywhere(source, site, lambda stmt: reissued(stmt, changed))


def with_form(source: Source, site: Site, form: Form) -> Program:
    """Change the modifiers of an instruction, or of that by which a wait loop polls."""
    return everywhere(
        source, site, lambda stmt: reissued(stmt, lambda each: replace(each, form=form))
    )


def other_form(form: Form, **tokens: str) -> Form | None:
    """Choose other tokens for slots of a form; `None` if that is none."""
    if any(
        token not in slot.choices
        for slot in form.declaration.slots
        if (token := tokens.get(slot.name)) is not None
    ) or not tokens.keys() <= {slot.name for slot in form.declaration.slots}:
        return None
    chosen = Form(form.declaration, tuple({**dict(form.modifiers), **tokens}.items()))
    return chosen if form.declaration.legal(chosen) is None else None

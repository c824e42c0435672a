"""Mutators of what orders a kernel's work: waits, fences, barriers, commits, arrivals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from mutations import (
    HANGS,
    LIFETIME,
    MBARRIER,
    PROXY,
    UNORDERED,
    Change,
    Kinds,
    everywhere,
    mutator,
    other_form,
    twice,
    with_form,
    without,
)
from sites import Path, Site, Source, block_around, is_wait_loop, issued, moved

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load
from tilewright.ir.statements import Bind, Declare, Instruct, Stmt, Store, While
from tilewright.ir.types import TensorType
from tilewright.ir.visit import free_variables, walk, walk_statements, written
from tilewright.isa import async_copy, mbarrier, memory
from tilewright.isa.declaration import Form

COMMITS = (async_copy.commit_group, async_copy.bulk_commit_group)
GLOBAL_RACE: Kinds = frozenset(("global-race", "race"))

# ---------------------------------------------------------------------------- what an edge is


def form_of(stmt: Stmt) -> Form | None:
    """Give the form of an instruction, or of that by which a wait loop polls."""
    each = issued(stmt)
    return None if each is None else each.form


def is_commit(form: Form) -> bool:
    """Tell what makes earlier operations countable: a group, or an arrival after them."""
    if form.declaration in COMMITS:
        return True
    addresses = [each for each in form.operands if each.kind == "address"]
    return form.time.completes == "mbarrier" and len(addresses) == len(form.operands) == 1


def is_fence(form: Form) -> bool:
    """Tell an instruction that does nothing but order others."""
    return bool(form.order.fence) or (form.order.proxy == "none" and not form.operands)


def is_barrier(form: Form) -> bool:
    """Tell where threads meet, or arrive to meet."""
    order, memory_operand = form.order, any(each.kind == "address" for each in form.operands)
    ordering = order.acquires or order.releases or "arrive" in form.text
    return ordering and not memory_operand and not is_fence(form)


def is_arrival(form: Form) -> bool:
    """Tell an arrival at an mbarrier, or bytes that it is told to expect."""
    return (
        form.declaration.family == mbarrier.init.family
        and any(each.access == "update" for each in form.operands)
        and form.declaration is not mbarrier.inval
    )


def is_wait(form: Form) -> bool:
    """Tell an instruction that waits for asynchronous work, or a wait loop's poll."""
    if is_barrier(form):
        return False
    wait = form.declaration.wait
    completes = form.time.completes and not form.time.agent
    return bool(completes) or (wait is not None and wait.kind in ("mbarrier", "group"))


def _is_spin(stmt: Stmt) -> bool:
    return isinstance(stmt, While) and is_wait_loop(stmt)


# ---------------------------------------------------------------------------- left out


@mutator("wait dropped")
def no_wait(source: Source, site: Site) -> Iterator[Change]:
    """Go on without waiting."""
    form = form_of(site.statement)
    if form is None or not (is_wait(form) or _is_spin(site.statement)):
        return
    yield Change("dropped", without(source, site), UNORDERED | HANGS | PROXY | LIFETIME)


@mutator("result ignored")
def one_attempt(source: Source, site: Site) -> Iterator[Change]:
    """Ask once whether a phase has ended, and go on whatever the answer."""
    if _is_spin(site.statement):
        program = everywhere(source, site, lambda stmt: cast(While, stmt).body)
        yield Change("asked once", program, UNORDERED | HANGS | {"ignored-try-wait"})


@mutator("fence dropped")
def no_fence(source: Source, site: Site) -> Iterator[Change]:
    """Go on without the fence."""
    form = form_of(site.statement)
    if form is None or not is_fence(form):
        return
    kinds = {
        "memory": GLOBAL_RACE,
        "proxy": PROXY | {"mbarrier-init-visibility"},
        "mbarrier_init": frozenset(("mbarrier-init-visibility",)),
        "": UNORDERED | LIFETIME,
    }[form.order.fence]
    yield Change("dropped", without(source, site), kinds)


@mutator("barrier dropped")
def no_barrier(source: Source, site: Site) -> Iterator[Change]:
    """Do not meet."""
    form = form_of(site.statement)
    if form is not None and is_barrier(form):
        yield Change("dropped", without(source, site), UNORDERED | HANGS | PROXY | LIFETIME)


@mutator("commit dropped")
def no_commit(source: Source, site: Site) -> Iterator[Change]:
    """Leave operations uncommitted."""
    form = form_of(site.statement)
    if form is not None and is_commit(form):
        yield Change("dropped", without(source, site), UNORDERED | HANGS)


@mutator("arrival dropped")
def no_arrival(source: Source, site: Site) -> Iterator[Change]:
    """Do not arrive, or expect no bytes."""
    form = form_of(site.statement)
    if form is not None and is_arrival(form):
        yield Change("dropped", without(source, site), HANGS | UNORDERED)


@mutator("arrival dropped")
def expects_only(source: Source, site: Site) -> Iterator[Change]:
    """Expect bytes without arriving."""
    form = form_of(site.statement)
    if form is None or form.declaration is not mbarrier.arrive_expect_tx_sink:
        return
    plain = Form(mbarrier.expect_tx, (("sem", ""), ("scope", ""), ("space", form["space"])))
    yield Change("expects without arriving", with_form(source, site, plain), HANGS)


@mutator("initialisation dropped")
def no_initialisation(source: Source, site: Site) -> Iterator[Change]:
    """Do not initialise a barrier, or do not give one up."""
    form = form_of(site.statement)
    if form is not None and form.declaration in (mbarrier.init, mbarrier.inval):
        yield Change("dropped", without(source, site), HANGS | UNORDERED)


# ---------------------------------------------------------------------------- once too often


@mutator("doubled")
def once_more(source: Source, site: Site) -> Iterator[Change]:
    """Arrive, initialise or commit twice."""
    form = form_of(site.statement)
    if form is None or not isinstance(site.statement, Instruct):
        return
    arrives = is_arrival(form) or (is_commit(form) and form.time.completes == "mbarrier")
    split = is_barrier(form) and form.declaration.wait is None and not form.order.acquires
    if arrives or split or form.declaration is mbarrier.init:
        yield Change("twice", twice(source, site), HANGS | UNORDERED | LIFETIME)


# ---------------------------------------------------------------------------- moved

# Spaces that more than one thread sees.
_SHARED = (Space.SHARED, Space.GLOBAL, Space.TMEM)


def _space(tensor: Expr) -> Space | None:
    return tensor.type.space if isinstance(tensor.type, TensorType) else None


def touches(stmt: Stmt) -> bool:
    """Tell whether anything at or below a statement touches memory that others see, or waits."""
    for each in walk(stmt):
        if isinstance(each, Store) and _space(each.tensor) in _SHARED:
            return True
        if isinstance(each, Load) and _space(each.tensor) in _SHARED:
            return True
        if isinstance(each, Instruct) and _matters(each.form):
            return True
    return False


def _matters(form: Form) -> bool:
    addressed = any(each.kind == "address" and each.access for each in form.operands)
    return addressed or bool(form.time.agent) or is_barrier(form) or is_commit(form)


def _names(stmt: Stmt) -> frozenset[str]:
    made = {each.var.name for each in walk_statements(stmt) if isinstance(each, Bind | Declare)}
    return frozenset(made | {var.name for each in walk_statements(stmt) for var in written(each)})


def _target(source: Source, path: Path, by: int) -> int | None:
    """Find where a statement is once it has passed one that matters; `None` if it cannot."""
    block, index = block_around(source.program, path), path[-1][1]
    stmt, form = block[index], form_of(block[index])
    of_groups = form is not None and bool(form.time.completes) and not form.time.agent
    used = {var.name for var in free_variables(stmt)}
    place = index + by
    while 0 <= place < len(block):
        if by < 0 and used & _names(block[place]):
            return None
        other = form_of(block[place])
        if touches(block[place]) and not (of_groups and other is not None and is_arrival(other)):
            return place
        place += by
    return None


def _passed(source: Source, path: Path, target: int) -> Stmt:
    return block_around(source.program, path)[target]


@mutator("moved")
def too_late(source: Source, site: Site) -> Iterator[Change]:
    """Wait, meet, fence or commit only after the next statement that matters."""
    form = form_of(site.statement)
    path = site.path
    if form is None or path is None:
        return
    edges = is_wait(form) or is_barrier(form) or is_fence(form) or is_commit(form)
    if not (edges or _is_spin(site.statement)):
        return
    target = _target(source, path, 1)
    if target is not None and _differs(form, _passed(source, path, target)):
        program = moved(source.program, path, target)
        kinds = UNORDERED | HANGS | PROXY | LIFETIME | MBARRIER
        yield Change("later", program, kinds)


@mutator("moved")
def too_early(source: Source, site: Site) -> Iterator[Change]:
    """Arrive, meet, fence or commit before the last statement that matters."""
    form = form_of(site.statement)
    path = site.path
    if form is None or path is None or _is_spin(site.statement):
        return
    if not (is_arrival(form) or is_barrier(form) or is_fence(form) or is_commit(form)):
        return
    target = _target(source, path, -1)
    if target is not None and _differs(form, _passed(source, path, target)):
        program = moved(source.program, path, target)
        yield Change("earlier", program, UNORDERED | HANGS | PROXY | LIFETIME | MBARRIER)


def _differs(form: Form, passed: Stmt) -> bool:
    """Tell whether passing a statement changes what is ordered: not so for two of a kind."""
    other = form_of(passed)
    if other is None:
        return True
    kinds = [
        (is_arrival(each), is_wait(each) and not each.operands, is_fence(each))
        for each in (form, other)
    ]
    return other.declaration is not form.declaration and kinds[0] != kinds[1]


# ---------------------------------------------------------------------------- weaker

_NARROWER = {"cluster": "cta", "gpu": "cta", "sys": "cta", "gl": "cta"}


def _weaker(form: Form) -> Iterator[tuple[str, Form]]:
    tokens = dict(form.modifiers)
    for slot in ("scope", "level"):
        narrow = _NARROWER.get(tokens.get(slot, ""))
        if narrow and (chosen := other_form(form, **{slot: narrow})):
            yield f".{tokens[slot]} is .{narrow}", chosen
    # An arrival that announces bytes hands on nothing that threads wrote.
    hands_on = not any(each.name == "txCount" for each in form.operands)
    if hands_on and (form.order.acquires or form.order.releases):
        scope = {"scope": tokens["scope"] or "cta"} if "scope" in tokens else {}
        if chosen := other_form(form, sem="relaxed", **scope):
            yield "relaxed", chosen
    if form.order.fence == "proxy" and (chosen := other_form(form, space="global")):
        yield "another space", chosen


@mutator("scope")
def weaker(source: Source, site: Site) -> Iterator[Change]:
    """Order at a narrower scope, in another space, or not at all."""
    form = form_of(site.statement)
    if form is None:
        return
    kinds = UNORDERED | PROXY | MBARRIER | {"cluster-peer"}
    for name, chosen in _weaker(form):
        yield Change(name, with_form(source, site, chosen), kinds)


@mutator("read-only")
def read_only(source: Source, site: Site) -> Iterator[Change]:
    """Read what the kernel writes by the path for what nobody writes."""
    form = form_of(site.statement)
    if form is None or form.declaration is not memory.ld or form["space"] != "global":
        return
    kept = {slot.name: form[slot.name] for slot in memory.ld_nc.slots}
    chosen = Form(memory.ld_nc, tuple({**kept, "cop": "", "evict": ""}.items()))
    kinds = frozenset(("read-only-load", "global-race"))
    yield Change("by .nc", with_form(source, site, chosen), kinds)

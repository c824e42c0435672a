"""Every fault that can be made of a correct kernel is found; those that are not are listed."""

from __future__ import annotations

import json
import random
import runpy
from collections import defaultdict
from collections.abc import Iterator

import pytest
from corpus import ROOT, SEEDS, Entry, corpus
from equivalent import REASONS, reason_why
from mutations import Mutant
from running import judged, mutants, sound

from tilewright.base.errors import CODES
from tilewright.ir.statements import Instruct
from tilewright.ir.visit import walk_statements
from tilewright.isa import grids
from tilewright.isa.declaration import Declaration, families
from tilewright.passes.lower_tiles import lower_tiles
from tilewright.sim.check.kinds import BY_NAME


def chosen(entry: Entry, every: bool) -> Iterator[Mutant]:
    """Choose a mutant of each group, by a seed; or yield all."""
    groups: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants(entry):
        groups[mutant.group].append(mutant)
    draw = random.Random(entry.name)
    for group in groups.values():
        yield from group if every else [draw.choice(group)]


def complaint(entry: Entry, mutant: Mutant, kind: str) -> str | None:
    """Say what is wrong about a verdict, if anything is."""
    reason = reason_why(entry.name, mutant.name)
    if reason is not None:
        return f"is listed as equivalent and found, {kind}" if kind else None
    if not kind:
        return f"is not found; expected one of {', '.join(sorted(mutant.change.kinds))}"
    if kind not in mutant.change.kinds:
        return f"is called {kind}; expected one of {', '.join(sorted(mutant.change.kinds))}"
    return None


@pytest.mark.parametrize("name", corpus())
def test_faults_are_found(name: str, request: pytest.FixtureRequest) -> None:
    entry = corpus()[name]
    known = sound(entry)
    wrong: list[str] = []
    for mutant in chosen(entry, request.config.getoption("--mutants") == "all"):
        verdict = judged(entry, mutant, known)
        if text := complaint(entry, mutant, verdict.kind):
            wrong.append(f"{mutant.name} ({mutant.group}) {text}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the table counts the seed programs too")
def test_the_page_about_the_checker_has_the_table_of_what_is_found() -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "checker.py"))
    sanitized = json.loads(benchmark["SANITIZER"].read_text())
    faults = [
        (entry, mutant, True)
        for entry in corpus().values()
        for mutant in mutants(entry)
        if reason_why(entry.name, mutant.name) is None
    ]
    page = benchmark["PAGE"].read_text()
    written = benchmark["with_table"](page, benchmark["counted"](faults, sanitized), sanitized)
    assert page == written, "python benchmarks/checker.py --only table --docs"


def test_there_are_mutants_of_every_group_in_number() -> None:
    made = [mutant for entry in corpus().values() for mutant in mutants(entry)]
    assert len(made) >= 300
    assert len({mutant.group for mutant in made}) >= 20


@pytest.mark.parametrize("name", corpus())
def test_mutants_have_names_of_their_own_and_kinds_that_there_are(name: str) -> None:
    made = list(mutants(corpus()[name]))
    names = [mutant.name for mutant in made]
    assert len(set(names)) == len(names)
    kinds = {kind for mutant in made for kind in mutant.change.kinds}
    assert kinds <= BY_NAME.keys() | CODES.keys()


def test_what_is_listed_as_equivalent_is_a_mutant() -> None:
    for kernel in {kernel for kernel, _ in REASONS} & corpus().keys():
        made = {mutant.name for mutant in mutants(corpus()[kernel])}
        assert {name for each, name in REASONS if each == kernel} <= made


# ---------------------------------------------------------------------------- the corpus


def key(declaration: Declaration) -> str:
    """Name an instruction by what is always written, whatever operands it is given."""
    tokens = [part for part in declaration.parts if isinstance(part, str)]
    return ".".join([declaration.family, *tokens])


# They order launches, which the simulator runs one after another.
BETWEEN_LAUNCHES = (grids.griddepcontrol_launch_dependents, grids.griddepcontrol_wait)


def orders(declaration: Declaration) -> bool:
    """Tell whether an instruction waits, lands later, orders work of a launch, or needs a warp."""
    if declaration in BETWEEN_LAUNCHES:
        return False
    if declaration.wait is not None or declaration.lanes != "any":
        return True
    return any(
        form.order.acquires
        or form.order.releases
        or form.order.fence
        or form.order.proxy != "generic"
        or form.time.agent
        or form.time.completes
        for form in declaration.forms()
    )


def test_the_corpus_has_every_instruction_that_has_an_order_a_time_or_a_wait() -> None:
    used = {
        key(stmt.form.declaration)
        for entry in corpus().values()
        for stmt in walk_statements(lower_tiles(entry.make().program))
        if isinstance(stmt, Instruct)
    }
    declared = [each for declarations in families().values() for each in declarations]
    missing = {key(each) for each in declared if orders(each)} - used
    assert not missing

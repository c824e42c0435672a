"""Kernels that were built before: what is kept of one, and how it is known again.

May import `base`, `ir` and the rest of `sim`. A kernel is known by the text that it prints as, by
which of its nodes stand at one place of the source, and by the state of this package's code. The
places themselves are not kept, but the numbers of nodes: lines may move.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.fingerprint import fingerprint
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.store import Store, packed, unpacked
from tilewright.base.targets import Target
from tilewright.ir.expressions import Constant
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Kernel, LaunchKernel, Program
from tilewright.ir.visit import walk
from tilewright.passes.places import storage_bytes
from tilewright.sim.engine import jit
from tilewright.sim.engine.sites import Message, Site, Sites
from tilewright.sim.options import Options

_KIND = "kernel"


@dataclass(frozen=True)
class Made:
    """What is made of a kernel: objects of native code, and what reports and launches need."""

    objects: Sequence[bytes]
    sites: Sites
    path_words: int
    levels: int
    frame_bytes: int
    memories: frozenset[str]


@dataclass(frozen=True)
class Recipe:
    """All that a kernel's native code depends on, and the places of its nodes."""

    text: str
    places: Sequence[Location | None]


def recipe(kernel: Kernel, target: Target, options: Options, where: jit.Machine) -> Recipe | None:
    """Say what a kernel's native code is made of; `None` where the package's state is unknown."""
    state = fingerprint()
    if state is None:
        return None
    nodes = list(walk(kernel))
    places = [_place(node) for node in nodes]
    first = _first(places)
    program = Program(kernel.name, kernel.params, (LaunchKernel(kernel.name),), (kernel,))
    # Text does not tell a NaN from another.
    floats = [
        struct.pack("d", node.value).hex()
        for node in nodes
        if isinstance(node, Constant) and isinstance(node.value, float)
    ]
    sizes = [(start, storage_bytes(kind)) for _, (start, kind) in kernel.buffers]
    parts = (
        *(state, jit.version(), where.cpu, where.features, target.arch, options.numerics),
        *(options.check, options.trace, sizes),
        *(print_program(program), floats, [first[place] for place in places]),
    )
    return Recipe("\n".join(map(str, parts)), places)


def find(store: Store, recipe: Recipe) -> Made | None:
    """Find what was made of a recipe."""
    data = store.get(_KIND, recipe.text)
    if data is None:
        return None
    facts, objects = unpacked(data)
    places = recipe.places
    sites = [Site(None if n is None else places[int(n)], text) for n, text in facts["sites"]]
    messages = [
        Message(code, text, None if space is None else Space(space), mbarrier)
        for code, text, space, mbarrier in facts["messages"]
    ]
    return Made(
        objects,
        Sites(sites=sites, messages={each.number: each for each in messages}),
        facts["path_words"],
        facts["levels"],
        facts["frame_bytes"],
        frozenset(facts["memories"]),
    )


def keep(store: Store, recipe: Recipe, made: Made) -> None:
    """Keep what was made of a recipe."""
    first = _first(recipe.places)
    if any(each.location not in first for each in made.sites.sites):
        return
    messages = made.sites.messages.values()
    facts = {
        "sites": [(first[each.location], each.text) for each in made.sites.sites],
        "messages": [(m.code, m.text, m.space and m.space.value, m.mbarrier) for m in messages],
        "path_words": made.path_words,
        "levels": made.levels,
        "frame_bytes": made.frame_bytes,
        "memories": sorted(made.memories),
    }
    store.put(_KIND, recipe.text, packed(facts, made.objects))


def _place(node: object) -> Location | None:
    found = getattr(node, "location", None)
    return found if isinstance(found, Location) else None


def _first(places: Sequence[Location | None]) -> dict[Location | None, int | None]:
    """Number places by the first node that stands at them."""
    found: dict[Location | None, int | None] = {None: None}
    for number, place in enumerate(places):
        found.setdefault(place, number)
    return found

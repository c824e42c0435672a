"""The pipelined examples give the right product, and none of their waits can be left out."""

from __future__ import annotations

import ast
import linecache
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = (128, 128, 512)  # M, N, K: the ring of three stages goes round twice and more
TARGETS = {
    "blackwell_pipeline": "sm_100a",
    "hopper_pipeline": "sm_90a",
    "ampere_pipeline": "sm_80",
}


def load(name: str, source: str | None = None) -> ModuleType:
    """Import an example, or a changed form of its source."""
    path = EXAMPLES / f"{name}.py"
    text = path.read_text() if source is None else source
    file = str(path) if source is None else f"<{name}, changed: {hash(source)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__file__ = file
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def largest_difference(
    name: str, shape: tuple[int, int, int], source: str | None = None, schedule: str = "late"
) -> float:
    """Run a product on integers, whose sums are exact, and hold it against NumPy's."""
    m, n, k = shape
    kernel: Any = load(name, source).pipelined_product(m, n, k)
    random = np.random.default_rng(m + n + k)
    a = random.integers(-4, 5, (m, k)).astype(np.float16)
    b = random.integers(-4, 5, (n, k)).astype(np.float16)
    d = np.full((m, n), np.nan, np.float32)
    tilewright.compile(kernel, target=TARGETS[name], backend="sim", schedule=schedule)(a, b, d)
    return float(np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max())


@pytest.mark.parametrize("schedule", ["late", "eager", *(f"random:{seed}" for seed in range(5))])
@pytest.mark.parametrize("name", TARGETS)
def test_a_pipeline_is_right_under_every_schedule(name: str, schedule: str) -> None:
    assert largest_difference(name, SMALL, schedule=schedule) == 0


@pytest.mark.parametrize("shape", [(128, 128, 64), (1024, 1024, 1024), (256, 384, 192)])
@pytest.mark.parametrize("name", TARGETS)
def test_a_pipeline_is_right_at_other_sizes(name: str, shape: tuple[int, int, int]) -> None:
    assert largest_difference(name, shape) == 0


SYNC = "T.cuda.cta_sync()"
# What is left out, and which of its occurrences in the source.
WAITS = {
    ("blackwell_pipeline", "full"): "mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)",
    ("blackwell_pipeline", "empty"): "mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1)",
    ("blackwell_pipeline", "done"): "mbarrier_wait(done.ptr_to([0]), 0)",
    ("blackwell_pipeline", "load"): "T.ptx.tcgen05.wait__ld.sync.aligned()",
    ("blackwell_pipeline", "bytes"): "T.ptx.mbarrier.arrive.expect_tx",
    ("blackwell_pipeline", "set-up"): SYNC,
    ("hopper_pipeline", "full"): "mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)",
    ("hopper_pipeline", "empty"): "mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1)",
    ("hopper_pipeline", "bytes"): "T.ptx.mbarrier.arrive.expect_tx",
    ("hopper_pipeline", "set-up"): SYNC,
    ("ampere_pipeline", "copies"): 'T.ptx["cp.async.wait_group"](STAGES - 2)',
    ("ampere_pipeline", "threads"): SYNC,
}


def without(source: str, wait: str) -> str:
    """Leave out the first statement in which a text occurs."""
    lines = source.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if wait in line)
    last = first
    while not ast_complete("".join(lines[first : last + 1])):
        last += 1
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    return "".join([*lines[:first], f"{indent}pass\n", *lines[last + 1 :]])


def ast_complete(text: str) -> bool:
    """Tell whether lines are a whole statement."""
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(("name", "what"), WAITS)
def test_a_wait_left_out_of_a_pipeline_shows(name: str, what: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    changed = without(source, WAITS[name, what])
    assert changed != source
    try:
        difference = largest_difference(name, SMALL, changed)
    except tilewright.SimulationError as report:
        assert report.location is not None
    else:
        assert difference != 0


def test_the_last_sync_left_out_shows() -> None:
    source = (EXAMPLES / "blackwell_pipeline.py").read_text()
    before, after = source.rsplit(SYNC, 1)
    with pytest.raises(tilewright.SimulationError):
        largest_difference("blackwell_pipeline", SMALL, f"{before}pass{after}")

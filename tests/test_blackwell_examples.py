"""The Blackwell examples give the right product, and none of their waits can be left out."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = (128, 128, 512)  # M, N, K: the ring of three stages goes round twice and more


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


def largest_difference(kernel: Any, shape: tuple[int, int, int], **options: Any) -> float:
    """Run a product on integers, whose sums are exact, and hold it against NumPy's."""
    m, n, k = shape
    random = np.random.default_rng(m + n + k)
    a = random.integers(-4, 5, (m, k)).astype(np.float16)
    b = random.integers(-4, 5, (n, k)).astype(np.float16)
    d = np.full((m, n), np.nan, np.float32)
    tilewright.compile(kernel, target="sm_100a", **options)(a, b, d)
    return float(np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max())


@pytest.mark.parametrize("schedule", ["late", "eager", *(f"random:{seed}" for seed in range(5))])
def test_the_pipeline_is_right_under_every_schedule(schedule: str) -> None:
    m, n, k = SMALL
    kernel = load("blackwell_pipeline").pipelined_product(m, n, k)
    assert largest_difference(kernel, SMALL, schedule=schedule) == 0


@pytest.mark.parametrize("shape", [(128, 128, 64), (1024, 1024, 1024), (256, 384, 192)])
def test_the_pipeline_is_right_at_other_sizes(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    kernel = load("blackwell_pipeline").pipelined_product(m, n, k)
    assert largest_difference(kernel, shape) == 0


WAITS = {
    "full": "T.cuda.mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)",
    "empty": "T.cuda.mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1) % 2)",
    "done": "T.cuda.mbarrier_wait(done.ptr_to([0]), 0)",
    "load of Tensor Memory": "T.ptx.tcgen05.wait__ld.sync.aligned()",
    "bytes announced": "T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(\n"
    "                    full.ptr_to([stage]), T.uint32(STAGE_BYTES)\n                )",
    "set-up": "T.cuda.cta_sync()",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_left_out_of_the_pipeline_shows(wait: str) -> None:
    source = (EXAMPLES / "blackwell_pipeline.py").read_text()
    assert WAITS[wait] in source
    # The set-up's is the first of two; leaving one out must show too.
    changed = source.replace(WAITS[wait], "pass", 1)
    m, n, k = SMALL
    kernel = load("blackwell_pipeline", changed).pipelined_product(m, n, k)
    try:
        difference = largest_difference(kernel, SMALL, schedule="late")
    except tilewright.SimulationError as report:
        assert report.location is not None
    else:
        assert difference != 0


def test_the_last_sync_left_out_of_the_pipeline_shows() -> None:
    source = (EXAMPLES / "blackwell_pipeline.py").read_text()
    before, after = source.rsplit(WAITS["set-up"], 1)
    m, n, k = SMALL
    kernel = load("blackwell_pipeline", f"{before}pass{after}").pipelined_product(m, n, k)
    with pytest.raises(tilewright.SimulationError):
        largest_difference(kernel, SMALL, schedule="late")

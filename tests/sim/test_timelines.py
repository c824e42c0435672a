"""Timelines: what a recorded run shows of warps, agents, waits and who ends them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver
from tilewright import simt as T
from tilewright.sim.trace.recorder import Recorder
from tilewright.sim.trace.timeline import Row, Slice, Timeline, packed, with_turns
from tilewright.sim.trace.trace import Trace, trace_of
from tilewright.view.timeline import timeline_page

copy = T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"]
STAGES, STEPS, WIDTH = 2, 5, 32
SCHEDULES = ("late", "eager", "random:1", "random:2")


@T.function
def ring(A: T.Tensor((STEPS, WIDTH), "float32", align=16), Out: T.Tensor((WIDTH,), "float32")):
    """Add rows that a thread of warp 0 has copied to a ring, in warp 1."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=3, block=64))
    tiles = T.alloc_shared((STAGES, WIDTH), "float32", layout="default", align=16)
    full = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
    empty = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    if warp == 0 and lane == 0:
        for stage in range(STAGES):
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([stage]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(empty.ptr_to([stage]), T.uint32(32))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if warp == 0 and lane == 0:
        for step in range(STEPS):
            slot = step % STAGES
            T.cuda.mbarrier_wait(empty.ptr_to([slot]), (step // STAGES + 1) % 2)
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([slot]), T.uint32(WIDTH * 4))
            copy(
                tiles.ptr_to([slot, 0]),
                A.ptr_to([step, 0]),
                T.uint32(WIDTH * 4),
                full.ptr_to([slot]),
            )
    if warp == 1:
        total: T.float32 = 0.0
        for step in range(STEPS):
            slot = step % STAGES
            T.cuda.mbarrier_wait(full.ptr_to([slot]), step // STAGES % 2)
            total = total + tiles[slot, lane]
            T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([slot]))
        if T.cuda.block_idx("x") == 0:
            Out[lane] = total


@T.function
def stuck(A: T.Tensor((64,), "float32")):
    """Wait for two arrivals, of which one comes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    bars = T.alloc_shared((2,), "uint64", layout="default", align=8)
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    if warp == 0 and lane == 0:
        T.ptx.mbarrier.init.shared.b64(bars.ptr_to([1]), T.uint32(2))
    T.cuda.cta_sync()
    if warp == 1 and lane == 0:
        T.ptx.mbarrier.arrive.shared.b64(bars.ptr_to([1]))
    if warp == 0:
        T.cuda.mbarrier_wait(bars.ptr_to([1]), 0)
    A[lane] = 1.0


@T.function
def commits(A: T.Tensor((128,), "float32"), Out: T.Tensor((128,), "float32")):
    """Copy by threads, in groups of which the first is waited for, then the other."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    tile = T.alloc_shared((64,), "float32", layout="default", align=16)
    lane = T.cuda.lane_id()
    for half in range(2):
        T.ptx.cp.async_.ca.shared.global_(
            tile.ptr_to([half * 32 + lane]), A.ptr_to([half * 32 + lane]), 4
        )
        T.ptx.cp.async_.commit_group()
    T.ptx.cp.async_.wait_group(1)
    Out[lane] = tile[lane]
    T.ptx.cp.async_.wait_group(0)
    Out[32 + lane] = tile[32 + lane]


@T.function
def cluster(Out: T.Tensor((4, 32), "int32")):
    """Meet at the barrier of clusters of two, where the second CTA comes late."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=2))
    block, lane = T.cuda.block_idx("x"), T.cuda.lane_id()
    for turn in range(2):
        if block % 2 == 1:
            T.ptx.nanosleep.u32(T.uint32(20))
        Out[block, lane] = turn
        T.ptx.barrier.cluster.arrive.aligned()
        T.ptx.barrier.cluster.wait.aligned()


def arguments() -> tuple[np.ndarray[Any, Any], ...]:
    return np.arange(STEPS * WIDTH, dtype=np.float32).reshape(STEPS, WIDTH), np.zeros(
        WIDTH, np.float32
    )


def recorded(schedule: str = "late", **options: Any) -> Trace:
    a, out = arguments()
    trace = tilewright.compile(ring, target="sm_90a", schedule=schedule).trace(a, out, **options)
    np.testing.assert_array_equal(out, a.sum(axis=0))
    return trace


def slices(timeline: Timeline, title: str, *kinds: str) -> list[Slice]:
    found = [each for row in timeline.rows if row.title == title for each in row.slices]
    return sorted((each for each in found if each.kind in kinds), key=lambda each: each.begin)


def waits(timeline: Timeline, title: str) -> list[str]:
    return [each.name for each in slices(timeline, title, "wait", "stuck")]


# ---------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waits_are_named_by_mbarrier_and_phase(schedule: str) -> None:
    (timeline,) = recorded(schedule).timelines
    own = [f"wait full[{step % STAGES}] phase {step // STAGES}" for step in range(STEPS)]
    assert waits(timeline, "warp 1") == ["barrier 0", *own]
    # The first time round a stage is empty: the phase before the first has ended.
    emptied = [f"wait empty[{step % STAGES}] phase {step // STAGES - 1}" for step in range(STEPS)]
    assert waits(timeline, "warp 0") == ["barrier 0", *emptied]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_copy_is_in_flight_from_its_issue_until_it_lands(schedule: str) -> None:
    (timeline,) = recorded(schedule).timelines
    flights = slices(timeline, "copy engine (TMA)", "flight")
    issues = slices(timeline, "warp 0", "issue")
    assert [each.begin for each in flights] == [each.begin for each in issues]
    assert len(flights) == STEPS
    assert all(each.end > each.begin + 1 for each in flights)
    handed = {(a.source, a.target) for a in timeline.arrows if a.kind == "issue"}
    assert handed == set(zip(issues, flights, strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrows_lead_from_what_lands_and_who_arrives_to_the_wait_that_ends(schedule: str) -> None:
    (timeline,) = recorded(schedule).timelines
    ended_by = {a.target: a.source for a in timeline.arrows if a.kind == "wake"}
    flights = slices(timeline, "copy engine (TMA)", "flight")
    consumer = slices(timeline, "warp 1", "wait")[1:]
    assert [ended_by[each] for each in consumer] == flights
    arrivals = [each for each in slices(timeline, "warp 1", "sync") if "empty" in each.name]
    producer = slices(timeline, "warp 0", "wait")[1 + STAGES :]
    assert [ended_by[each] for each in producer] == arrivals[: STEPS - STAGES]
    # Nobody arrives for the phases before the first.
    assert not ended_by.keys() & set(slices(timeline, "warp 0", "wait")[1 : 1 + STAGES])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_causes_come_before_their_effects(schedule: str) -> None:
    (timeline,) = recorded(schedule).timelines
    for arrow in timeline.arrows:
        assert arrow.at <= arrow.to
        for end, time in ((arrow.source, arrow.at), (arrow.target, arrow.to)):
            assert end.begin <= time < end.end


def test_the_last_to_arrive_at_a_barrier_wakes_the_others() -> None:
    (timeline,) = recorded().timelines
    barriers = [slices(timeline, f"warp {warp}", "wait")[0] for warp in range(2)]
    (woken,) = [a for a in timeline.arrows if a.target in barriers]
    assert {woken.source, woken.target} == set(barriers)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_cta_of_a_cluster_that_comes_last_wakes_the_others(schedule: str) -> None:
    ctas = [(x, 0, 0) for x in range(4)]
    made = tilewright.compile(cluster, target="sm_90a", schedule=schedule)
    trace = made.trace(np.zeros((4, 32), np.int32), ctas=ctas)
    owners = {s: each for each in trace.timelines for row in each.rows for s in row.slices}
    between = [
        (each.cta, arrow)
        for each in trace.timelines
        for arrow in each.arrows
        if owners[arrow.source] is not each
    ]
    assert len(between) == 4
    for cta, arrow in between:
        source = owners[arrow.source]
        assert source.cta[0] // 2 == cta[0] // 2
        assert arrow.source.name.startswith("barrier.cluster.arrive")
        assert arrow.target.name == "barrier of the cluster"
        assert arrow.target.facts["ended by"].endswith(f"of CTA {source.cta}")
        # CTAs that take turns have one time.
        assert arrow.at < arrow.to
    flows = [event for event in json.loads(trace.json())["traceEvents"] if event["ph"] in "sf"]
    processes: dict[str, set[int]] = {}
    for event in flows:
        processes.setdefault(event["id"], set()).add(event["pid"])
    assert sum(len(each) == 2 for each in processes.values()) == 4
    assert "barrier.cluster" in timeline_page(trace.json(), "clusters")


def test_late_copies_run_ahead_as_far_as_the_ring_allows_and_eager_ones_do_not() -> None:
    depth: dict[str, int] = {}
    for schedule in ("late", "eager"):
        (timeline,) = recorded(schedule).timelines
        depth[schedule] = sum(row.title == "copy engine (TMA)" for row in timeline.rows)
    assert depth == {"late": STAGES, "eager": 1}


def test_an_arrival_says_what_it_does_to_its_mbarrier() -> None:
    (timeline,) = recorded().timelines
    expecting = slices(timeline, "warp 0", "sync")
    (first, *_) = [each for each in expecting if each.name.endswith("full[0]")][1:]
    assert first.facts["full[0]"] == "phase 0, 1 of 1 arrivals"
    (arrival, *_) = slices(timeline, "warp 1", "sync")
    assert arrival.facts["empty[0]"] == "phase 0 ends"


def test_slices_know_their_line_and_lanes() -> None:
    (timeline,) = recorded().timelines
    wait = slices(timeline, "warp 1", "wait")[1]
    assert wait.location is not None
    assert "T.cuda.mbarrier_wait(full" in wait.location.chain()[-1].source_line()
    assert wait.lanes == 0xFFFFFFFF
    assert slices(timeline, "warp 0", "issue")[0].lanes == 1


def test_groups_of_copies_are_waited_for() -> None:
    executable = tilewright.compile(commits, target="sm_80")
    (timeline,) = executable.trace(np.zeros(128, np.float32), np.zeros(128, np.float32)).timelines
    copies = slices(timeline, "copies of threads", "flight")
    assert len(copies) == 2
    found = slices(timeline, "warp 0", "wait")
    assert [each.name for each in found] == ["wait for copies of threads"] * 2
    ended_by = {a.target: a.source for a in timeline.arrows if a.kind == "wake"}
    assert [ended_by[each] for each in found] == copies


def test_a_deadlock_leaves_a_trace_that_shows_who_is_stuck() -> None:
    with pytest.raises(tilewright.DeadlockError) as caught:
        tilewright.compile(stuck, target="sm_90a").trace(np.zeros(64, np.float32))
    (timeline,) = caught.value.trace.timelines
    (held,) = slices(timeline, "warp 0", "stuck")
    assert held.name == "wait bars[1] phase 0"
    # To give up and try again takes no time.
    assert timeline.end < 100 and timeline.dropped == 0
    assert not slices(timeline, "warp 1", "stuck")


# ---------------------------------------------------------------------------- which run


def test_the_first_cta_is_recorded_or_those_that_are_named() -> None:
    assert [each.cta for each in recorded().timelines] == [(0, 0, 0)]
    chosen = recorded(ctas=[(2, 0, 0), (1, 0, 0), (7, 0, 0)])
    assert [each.cta for each in chosen.timelines] == [(1, 0, 0), (2, 0, 0)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bytes_depend_on_the_schedule_and_the_seed_only(schedule: str) -> None:
    first, *others = (recorded(schedule, ctas=[(0, 0, 0), (2, 0, 0)]).json() for _ in range(3))
    assert all(each == first for each in others)


def test_a_limit_of_events_bounds_what_is_kept_and_is_told() -> None:
    recorder = Recorder(limit=40)
    with driver.session(driver.Defaults(recorder=recorder)):
        executable = tilewright.compile(ring, target="sm_90a")
        for _ in range(2):
            executable(*arguments())
    trace = trace_of(recorder)
    first, second = trace.timelines
    assert first.dropped > 0 and second.dropped > first.dropped
    told = json.loads(trace.json())["otherData"]["incomplete"]
    assert f"limit of 40 events was reached: {trace.dropped} are not" in told
    # What has no end in the trace is not said to have none.
    assert not [each for row in first.rows for each in row.slices if each.kind == "stuck"]


def test_code_without_a_trace_has_nothing_of_it() -> None:
    executable = tilewright.compile(ring, target="sm_90a")
    plain, traced = executable._simulator, executable._simulator.traced()
    (kernel,) = executable.ir.kernels
    for simulator, there in ((plain, False), (traced, True)):
        built = simulator._built[kernel.name]()
        assert bool(built.code.address("trace_note")) is there
        assert ("trace" in built.memories) is there


# ---------------------------------------------------------------------------- the file


def events(trace: Trace, *phases: str) -> list[dict[str, Any]]:
    return [each for each in json.loads(trace.json())["traceEvents"] if each["ph"] in phases]


def test_slices_of_a_thread_nest_as_viewers_demand() -> None:
    open_: dict[tuple[int, int], list[int]] = {}
    for each in sorted(events(recorded(), "X"), key=lambda e: (e["ts"], -e["dur"])):
        ends = open_.setdefault((each["pid"], each["tid"]), [])
        while ends and ends[-1] <= each["ts"]:
            ends.pop()
        assert not ends or each["ts"] + each["dur"] <= ends[-1]
        ends.append(each["ts"] + each["dur"])


def test_flows_come_in_pairs_that_lie_in_slices() -> None:
    trace = recorded()
    spans = events(trace, "X")
    pairs: dict[str, list[dict[str, Any]]] = {}
    for each in events(trace, "s", "f"):
        pairs.setdefault(each["id"], []).append(each)
        assert any(
            (one["pid"], one["tid"]) == (each["pid"], each["tid"])
            and one["ts"] <= each["ts"] < one["ts"] + one["dur"]
            for one in spans
        )
    assert pairs and all([e["ph"] for e in each] == ["s", "f"] for each in pairs.values())


def test_the_page_is_one_file_that_loads_nothing() -> None:
    trace = recorded()
    page = timeline_page(trace.json(), "a <b>.json")
    assert "<title>a &lt;b&gt;.json</title>" in page
    assert not [word for word in ("http:", "https:", "src=", "import ", "@import") if word in page]
    start = page.index('id="data">') + len('id="data">')
    data = json.loads(page[start : page.index("</script>", start)])
    (process,) = data["processes"]
    assert [row["title"] for row in process["rows"]] == [r.title for r in trace.timelines[0].rows]
    drawn = sum(len(row["slices"]) for row in process["rows"])
    assert drawn == sum(len(row.slices) for row in trace.timelines[0].rows)
    assert len(process["arrows"]) == len(trace.timelines[0].arrows)
    assert all(arrow[2] >= 0 and arrow[5] >= 0 for arrow in process["arrows"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": []}', '{"otherData": {}}'])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(tilewright.LaunchError, match="is not a trace"):
        timeline_page(text, "x.json")


# ---------------------------------------------------------------------------- rows


def slice_of(begin: int, end: int, lanes: int = 1, kind: Any = "wait") -> Slice:
    return Slice(kind, "", begin, end, lanes)


def test_what_overlaps_is_in_rows_of_its_own_and_lanes_keep_theirs() -> None:
    a, b, c = slice_of(0, 4, 1), slice_of(2, 6, 2), slice_of(6, 8, 2)
    assert packed("w", [c, b, a]) == [Row("w", [a]), Row("w", [b, c])]


def test_turns_leave_waits_out() -> None:
    wait = slice_of(3, 6)
    row = with_turns(Row("w", [wait]), [slice_of(0, 4, kind="turn"), slice_of(5, 9, kind="turn")])
    assert [(each.kind, each.begin, each.end) for each in row.slices] == [
        ("turn", 0, 3),
        ("wait", 3, 6),
        ("turn", 6, 9),
    ]

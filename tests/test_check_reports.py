"""Findings as users read them: lines, names, elements, what is missing; one fault is told once."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import tilewright
from tilewright import simt
from tilewright.base.errors import CODES, SimulationError
from tilewright.base.findings import Finding, counted, merged
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.types import TensorType
from tilewright.layout import mma_shared_layout
from tilewright.sim.check import faults
from tilewright.sim.check.findings import findings
from tilewright.sim.check.kinds import BY_NAME
from tilewright.sim.check.memory import Launched
from tilewright.sim.check.raw import RawFinding
from tilewright.sim.check.report import as_json, as_sarif
from tilewright.sim.engine.sites import Site
from tilewright.sim.options import Region

T: Any = simt
SOURCE = Path(tilewright.__file__).parent
HERE = str(Path(__file__))
SHARED = 1024  # where shared memory begins
SWIZZLED = mma_shared_layout("float16", 3, (8, 64))


@T.function
def buffers(A: T.Tensor((4, 8), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(2, 3), block=64))
    first = T.alloc_shared((64,), "uint8", layout="default", align=128)
    rows = T.alloc_shared((8, 16), "float32", layout="default", align=128)
    swizzled = T.alloc_shared((8, 64), "float16", layout=SWIZZLED, align=1024)
    i = T.cuda.thread_idx("x")
    first[i] = T.uint8(0)
    rows[0, i % 16] = A[0, i % 8]
    swizzled[0, i] = T.float16(0)


def launched() -> Launched:
    program = tilewright.compile(buffers, target="sm_90a", backend="sim")
    simulated = SimpleNamespace(kernel=program.ir.kernels[0])
    kind = cast(TensorType, program.program.params[0].type)
    return Launched(
        cast(Any, simulated), (2, 3, 1), [Region("A", 0x7F0000, 128, True)], {"A": (kind, (4, 8))}
    )


def place(line: int, text: str = "read") -> Site:
    return Site(Location(HERE, line, 4, line, 10), text)


def raw(kind: str = "race", **changes: Any) -> RawFinding:
    fields: dict[str, Any] = {
        "kind": kind,
        "cta": 0,
        "site": place(40, "write"),
        "other": place(41),
        "owner": "warp",
        "other_owner": "warp",
        "warp": 1,
        "lanes": 0b1111,
        "other_warp": 0,
        "other_lanes": 0xFFFFFFFF,
        "space": Space.SHARED,
        "address": SHARED,
        "size": 4,
        "count": 1,
    }
    return RawFinding(**(fields | changes))


def only(*given: RawFinding) -> Finding:
    (finding,) = findings(given, launched())
    return finding


# ---------------------------------------------------------------------------- the text


def test_a_finding_reads_from_the_guilty_line_down() -> None:
    address = SHARED + 128 + 4 * (16 + 3)
    site, other = place(41, "write"), place(40)
    finding = only(raw(address=address, count=7, cta=3, site=site, other=other))
    lines = Path(__file__).read_text().splitlines()
    assert str(finding).splitlines() == [
        "error: two accesses to the same memory have no order, and one of them writes [race]",
        f"  --> {HERE}:41:5",
        f"   41 | {lines[40]}",
        "      |     ^^^^^^",
        f"  after {HERE}:40:5",
        f"   40 | {lines[39]}",
        "      |     ^^^^^^",
        "  here: write, by warp 1, lanes 0-3",
        "  there: read, by warp 0, lanes 0-31",
        "  memory: rows[1, 3], bytes 76-79 of rows, shared address 1228",
        "  missing: no synchronisation orders warp 0, lanes 0-31 and warp 1, lanes 0-3 on rows",
        "  hint: put a barrier, or another synchronisation of their threads, between the two",
        "  met: in buffers_kernel, CTA (1, 1, 0); 7 times",
    ]
    assert (finding.warp, finding.lanes, finding.cta) == (1, 0b1111, (1, 1, 0))


def test_the_line_that_lacks_the_fence_is_the_guilty_one() -> None:
    finding = only(raw("missing-proxy-fence", owner="tensor core", lanes=1))
    assert finding.location == place(41).location and finding.other_location == place(40).location
    assert f"  and then {HERE}:40:5" in str(finding)
    assert finding.other_actor == "write, by tensor core, for warp 1, lane 0"
    assert (finding.warp, finding.lanes) == (0, 0xFFFFFFFF)
    assert finding.missing.startswith("warp 0, lanes 0-31 writes first")


def test_a_finding_may_have_one_side() -> None:
    finding = only(raw("uninitialised", other=None, other_owner="warp", other_lanes=0))
    assert finding.other_location is None and finding.other_actor == ""
    assert "nothing has written first before warp 1, lanes 0-3 reads it" in str(finding)


def test_calls_that_lead_to_a_line_are_listed() -> None:
    inner = Location(HERE, 40, 4, 40, 10, inlined_at=Location(HERE, 50, 0, 50, 3))
    assert f"  called from {HERE}:50:1" in str(only(raw(site=Site(inner, "write"))))


# ---------------------------------------------------------------------------- names of memory


@pytest.mark.parametrize(
    ("space", "address", "size", "text"),
    [
        (Space.SHARED, SHARED + 5, 1, "first[5], byte 5 of first, shared address 1029"),
        (Space.SHARED, SHARED + 128, 16, "rows[0, 0], bytes 0-15 of rows, shared address 1152"),
        (Space.SHARED, SHARED + 130, 1, "rows[0, 0], byte 2 of rows, shared address 1154"),
        (Space.GLOBAL, 0x7F0000 + 4 * 13, 4, "A[1, 5], bytes 52-55 of A"),
        (Space.GLOBAL, 0x10, 4, "global memory outside every argument"),
        (Space.TMEM, (32 << 16) + 7, 32, "Tensor Memory, lanes 32-63 of column 7"),
        (Space.TMEM, 7, 1, "Tensor Memory, lane 0 of column 7"),
    ],
)
def test_memory_is_named_as_the_user_does(space: Space, address: int, size: int, text: str) -> None:
    assert only(raw(space=space, address=address, size=size)).memory == text


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 0), (3, 20), (7, 63)])
def test_elements_of_swizzled_buffers_are_found(row: int, column: int) -> None:
    """With the swizzle of 128 bytes, chunk c of 16 bytes of row r is at chunk c ^ r."""
    byte = 128 * row + 16 * ((column // 8) ^ row) + 2 * (column % 8)
    start = SHARED + 1024
    finding = only(raw(address=start + byte, size=2))
    assert finding.memory.startswith(f"swizzled[{row}, {column}], bytes {byte}-{byte + 1} of")


# ---------------------------------------------------------------------------- one fault, once


def test_one_fault_is_one_finding_over_all_ctas() -> None:
    finding = only(*(raw(cta=cta, count=10) for cta in (5, 2, 3)))
    assert finding.cta == (0, 1, 0) and finding.ctas == 3 and finding.count == 30
    assert str(finding).endswith("CTA (0, 1, 0); 30 times in 3 CTAs")


def test_either_order_of_a_pair_is_one_fault() -> None:
    both = raw(), raw(site=place(41), other=place(40, "write"))
    assert only(*both).count == 2


def test_instructions_of_one_line_are_one_place() -> None:
    assert only(raw(), raw(site=place(40, "write another"))).count == 2


def test_kinds_and_pairs_are_told_apart() -> None:
    kinds = findings([raw(), raw("missing-wait"), raw(other=place(42))], launched())
    assert len(kinds) == 3


def test_what_is_read_too_early_is_told_as_the_missing_order_only() -> None:
    alone = raw("uninitialised", site=place(41), other=None)
    assert [each.kind for each in findings([alone, raw()], launched())] == ["race"]
    assert len(findings([raw("uninitialised", site=place(43), other=None), raw()], launched())) == 2


def test_errors_come_first_then_ctas_then_the_order_of_occurrence() -> None:
    order = [
        raw("missing-proxy-fence-war", cta=0),
        raw(cta=2, site=place(51), other=place(1)),
        raw(cta=1, site=place(52), other=place(2)),
        raw(cta=1, site=place(53), other=place(3)),
    ]
    lines = [
        each.other_location.line for each in findings(order, launched()) if each.other_location
    ]
    assert lines == [2, 3, 1, 40]


def test_launches_add_up() -> None:
    first = only(raw(count=2))
    assert counted(merged([first, first, first])) == "1 error"
    assert merged([first, first])[0].met().endswith("4 times in 2 launches")


# ---------------------------------------------------------------------------- faults


def messages() -> str:
    files = [*SOURCE.glob("isa/*.py"), *SOURCE.glob("sim/**/*.py")]
    texts = "".join(p.read_text() for p in files if p.parent.name != "check")
    return re.sub(r'"\s*\n\s*f?"', "", texts)


def test_every_fault_of_a_run_has_a_kind() -> None:
    codes = {code for code, (owner, _) in CODES.items() if issubclass(owner, SimulationError)}
    assert faults.BY_CODE.keys() == codes
    assert set(faults.BY_CODE.values()) <= BY_NAME.keys()


@pytest.mark.parametrize(("code", "text", "kind"), faults.BY_TEXT, ids=lambda each: each[:30])
def test_texts_that_decide_a_kind_are_texts_of_faults(code: str, text: str, kind: str) -> None:
    assert code in faults.BY_CODE and kind in BY_NAME
    assert text in messages()


def found(kernel: Any, *arguments: Any, target: str = "sm_100a") -> Finding:
    with pytest.raises(tilewright.CheckError) as caught:
        tilewright.compile(kernel, target=target, check=True)(*arguments)
    assert caught.value.kind == caught.value.findings[0].kind
    return caught.value.findings[0]


def line_of(kernel: Any, text: str) -> int:
    lines, start = inspect.getsourcelines(kernel.function)
    return start + next(number for number, line in enumerate(lines) if text in line)


def test_an_access_outside_shared_memory() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(3, 2), block=64))
        tile = T.alloc_shared((64,), "int32", layout="default")
        if T.cuda.block_idx("x") == 2:
            tile[T.cuda.thread_idx("x") + 20] = T.int32(1)

    finding = found(kernel, np.zeros(1, np.int32))
    assert finding.kind == "out-of-bounds" and finding.cta == (2, 0, 0)
    assert (finding.warp, finding.lanes) == (1, 1 << 12)
    assert finding.memory == "byte 256 of tile, shared address 1280"
    assert finding.location and finding.location.line == line_of(kernel, "+ 20]")


def test_what_is_found_before_a_fault_is_told_with_it() -> None:
    @T.function
    def kernel(Out: T.Tensor((64,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        i = T.cuda.thread_idx("x")
        tile = T.alloc_shared((64,), "float32", layout="default")
        tile[i] = T.float32(1)
        Out[i] = tile[63 - i]
        T.cuda.cta_sync()
        Out[i + 8] = tile[i]

    with pytest.raises(tilewright.CheckError) as caught:
        tilewright.compile(kernel, check=True)(np.zeros(64, np.float32))
    assert [each.kind for each in caught.value.findings] == ["race", "out-of-bounds"]


# ---------------------------------------------------------------------------- deadlocks


def hanging(expected: int, bytes_: int, arrivals: int, parity: int = 0) -> Any:
    """Write a kernel that waits for a phase that does not complete."""

    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        full = T.alloc_shared((2,), "uint64", layout="default", align=8)
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([1]), T.uint32(expected))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if T.cuda.thread_idx("x") < arrivals:
            T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, full.ptr_to([1]))
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(full.ptr_to([1]), T.uint32(bytes_))
        T.cuda.mbarrier_wait(full.ptr_to([1]), parity)

    return kernel


def hang(kernel: Any) -> Finding:
    return found(kernel, np.zeros(1, np.int32))


def test_bytes_that_do_not_come() -> None:
    kernel = hanging(3, 48, 2)
    finding = hang(kernel)
    assert finding.kind == "mbarrier-tx"
    assert finding.location and finding.location.line == line_of(kernel, "mbarrier_wait")
    assert "2 of 3 arrivals, 48 bytes expected, 0 have come" in finding.actor
    line = line_of(kernel, "expect_tx.relaxed")
    assert any("bytes for it" in note and f":{line}:" in note for note in finding.notes)


def test_arrivals_that_lack() -> None:
    kernel = hanging(5, 0, 2)
    finding = hang(kernel)
    assert finding.kind == "mbarrier-arrival"
    assert finding.memory == "full[1], bytes 8-15 of full, shared address 1032"
    assert "full[1] has 2 of 5 arrivals in phase 0" in finding.notes
    line = line_of(kernel, "arrive.shared")
    assert any("it is arrived at by" in note and f":{line}:" in note for note in finding.notes)
    came = f"warp 0, lanes 0-1 came, by mbarrier.arrive.shared::cta.b64 at {HERE}:{line}:13"
    assert came in finding.notes


def test_who_has_arrived_in_a_phase_before_and_not_again_and_where_it_is() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
        warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
        turns = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(turns.ptr_to([0]), T.uint32(2))
        T.cuda.cta_sync()
        if warp < 2 and lane == 0:
            T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, turns.ptr_to([0]))
        T.cuda.mbarrier_wait(turns.ptr_to([0]), 0)
        T.cuda.cta_sync()
        if warp == 0 and lane == 0:
            T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, turns.ptr_to([0]), T.uint32(1))
        if warp == 1:
            T.ptx.bar.sync(T.uint32(5), T.uint32(64))
        T.cuda.mbarrier_wait(turns.ptr_to([0]), 1)

    finding = hang(kernel)
    assert finding.kind == "mbarrier-arrival"
    arrive = "mbarrier.arrive.shared::cta.b64"
    first, again = (line_of(kernel, text) for text in ("SINK, turns.ptr_to([0]))", "uint32(1))"))
    elsewhere = line_of(kernel, "bar.sync(T.uint32(5)")
    assert f"warp 0, lane 0 came, by {arrive} at {HERE}:{again}:13" in finding.notes
    assert (
        f"warp 1, lane 0 came before, by {arrive} at {HERE}:{first}:13, and not again: "
        f"it waits at {HERE}:{elsewhere}:13" in finding.notes
    )


def test_the_mbarrier_that_nobody_arrives_at_is_at_the_root() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        empty = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(empty.ptr_to([0]), T.uint32(1))
        T.cuda.cta_sync()
        if warp == 1 and lane == 0:
            for turn in range(3):
                T.cuda.mbarrier_wait(empty.ptr_to([0]), (turn + 1) % 2)
                T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, full.ptr_to([0]))
        if warp == 0:
            for turn in range(3):
                T.cuda.mbarrier_wait(full.ptr_to([0]), turn % 2)

    finding = hang(kernel)
    assert finding.kind == "mbarrier-arrival"
    assert finding.location and finding.location.line == line_of(kernel, "wait(empty")
    assert any(note.endswith("arrives at empty") for note in finding.notes)


def test_who_has_come_to_a_named_barrier_and_gone_on() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        if T.cuda.thread_idx("x") < 32:
            T.ptx.bar.arrive(T.uint32(3), T.uint32(96))
        else:
            T.ptx.bar.sync(T.uint32(3), T.uint32(96))

    line = line_of(kernel, "bar.arrive")
    assert f"warp 0 came, by bar.arrive at {HERE}:{line}:13" in hang(kernel).notes


def test_what_a_cta_has_no_room_for_is_counted() -> None:
    @T.function
    def kernel(Out: T.Tensor((2, 160), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
        s = T.alloc_shared((160,), "int32", layout="default", align=16)
        for k in [*range(150)]:
            if T.cuda.lane_id() == 0:
                Out[T.cuda.block_idx("x"), k] = s[k]

    finding = found(kernel, np.zeros((2, 160), np.int32))
    assert finding.count == 2 * 128
    assert finding.notes == (
        "a CTA tells of 128 findings at most: 44 more were met, and are not told",
    )


def test_an_mbarrier_at_which_nobody_arrives() -> None:
    assert hang(hanging(1, 0, 0)).kind == "mbarrier-arrival"


def test_both_wait_for_the_other_from_the_beginning() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        empty = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(empty.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if T.cuda.thread_idx("x") == 0:
            T.cuda.mbarrier_wait(empty.ptr_to([0]), 0)
            T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, full.ptr_to([0]))
        if T.cuda.thread_idx("x") == 32:
            T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
            T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, empty.ptr_to([0]))

    finding = hang(kernel)
    assert finding.kind == "mbarrier-phase"
    assert finding.location and finding.location.line == line_of(kernel, "wait(empty")
    assert "producers begin with parity 1" in finding.hint


def test_a_named_barrier_with_a_wrong_count() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
        if T.cuda.thread_idx("x") < 64:
            T.ptx.bar.sync(T.uint32(3), T.uint32(96))

    finding = hang(kernel)
    assert finding.kind == "named-barrier"
    line = line_of(kernel, "bar.sync")
    assert any(
        note.startswith("at barrier 3 wait warp 0, lanes 0-31 at") and note.count(f":{line}:") == 2
        for note in finding.notes
    )


def test_a_barrier_that_not_all_reach() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        if T.cuda.thread_idx("x") < 32:
            T.ptx.bar.sync(T.uint32(1))
        else:
            T.ptx.bar.sync(T.uint32(2))

    finding = hang(kernel)
    assert finding.kind == "divergent-collective"
    line = line_of(kernel, "uint32(2)")
    assert f"not there: warp 1, lanes 0-31 at {HERE}:{line}:13" in finding.notes


def test_a_collective_in_a_branch() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        if T.cuda.thread_idx("x") < 16:
            T.cuda.warp_sync()

    # The lanes that do not come have no wait: they end, and are waited for no more.
    tilewright.compile(kernel)(np.zeros(1, np.int32))
    finding = found(kernel, np.zeros(1, np.int32), target="sm_90a")
    assert finding.kind == "divergent-collective"
    assert "warp 0, lanes 16-31 too" in finding.missing
    assert finding.actor.endswith("by warp 0, lanes 0-15")


# ---------------------------------------------------------------------------- JSON, SARIF


def some() -> tuple[Finding, ...]:
    inner = Location("sub/a b.py", 40, 4, 40, 10, inlined_at=Location("sub/c.py", 50, 0, 50, 3))
    given = [raw(site=Site(inner, "write")), raw("missing-proxy-fence-war", other=place(3))]
    return findings(given, launched())


def test_json_has_all_of_a_finding() -> None:
    report = json.loads(as_json(some(), 12, "9.9"))
    assert report["tool"] == {"name": "tilewright", "version": "9.9"}
    assert (report["calls"], report["errors"], report["warnings"]) == (12, 1, 1)
    first = report["findings"][0]
    assert first["kind"] == "race" and first["severity"] == "error"
    assert first["location"] == {
        "file": "sub/a b.py",
        "line": 40,
        "column": 5,
        "end_line": 40,
        "end_column": 11,
        "called_from": {
            "file": "sub/c.py",
            "line": 50,
            "column": 1,
            "end_line": 50,
            "end_column": 4,
            "called_from": None,
        },
    }
    assert first["lanes"] == [0, 1, 2, 3] and first["cta"] == [0, 0, 0]
    names = {"location", "actor", "memory", "missing", "hint", "notes", "kernel", "schedule"}
    assert names <= first.keys()


def test_sarif_has_what_the_standard_requires() -> None:
    """SARIF 2.1.0, 3.13 to 3.30: required properties, and how they refer to one another."""
    log = json.loads(as_sarif(some(), "9.9", Path("/project")))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "tilewright" and run["columnKind"] == "unicodeCodePoints"
    assert [rule["id"] for rule in driver["rules"]] == ["missing-proxy-fence-war", "race"]
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning") and result["message"]["text"]
        for each in [*result["locations"], *result["relatedLocations"]]:
            region = each["physicalLocation"]["region"]
            assert region["startLine"] >= 1 and region["startColumn"] >= 1
            assert each["physicalLocation"]["artifactLocation"]["uri"]
    first, second = run["results"]
    where = first["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "sub/a%20b.py", "from the folder, escaped"
    assert where["region"] == {"startLine": 40, "startColumn": 5, "endLine": 40, "endColumn": 11}
    assert [each["message"]["text"] for each in first["relatedLocations"]] == [
        "after this",
        "called from here",
    ]
    outside = second["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert outside == Path(HERE).as_uri()


@pytest.mark.parametrize(
    "write", [lambda f: as_json(f, 1, "1"), lambda f: as_sarif(f, "1", Path("/"))]
)
def test_files_are_the_same_byte_for_byte(
    write: Callable[[tuple[Finding, ...]], str],
) -> None:
    assert write(some()) == write(some()) and write(some()).endswith("}\n")
    assert json.loads(write(()))

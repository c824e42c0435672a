"""`check` in `compile` and in calls: what is raised, what is told, what the arrays hold then."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver, simt
from tilewright.base.findings import Finding
from tilewright.runtime.cuda_driver import Gpu

T: Any = simt


@T.function
def turned(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    """Reverse an array through shared memory, and forget the barrier in between."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    tile = T.alloc_shared((64,), "float32", layout="default")
    tile[i] = A[i]
    Out[i] = tile[63 - i]


@T.function
def orderly(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    tile = T.alloc_shared((64,), "float32", layout="default")
    tile[i] = A[i]
    T.cuda.cta_sync()
    Out[i] = tile[63 - i]


@T.function
def outside(Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    Out[T.cuda.thread_idx("x") + 8] = T.float32(1)


@T.function
def with_names_of_options(Out: T.Tensor((1,), "int32"), check: T.int32, allow: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.lane_id() == 0:
        Out[0] = check + allow


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


def caught(executable: tilewright.Executable, *given: Any, **named: Any) -> tilewright.CheckError:
    with pytest.raises(tilewright.CheckError) as raised:
        executable(*given, **named)
    return raised.value


def warning(monkeypatch: pytest.MonkeyPatch, severity: str) -> None:
    """Let the simulator find something of a severity in every launch."""
    found = Finding("race", severity, "a hazard", kernel="orderly_kernel", actor="warp 0")  # type: ignore[arg-type]
    monkeypatch.setattr(
        "tilewright.runtime.simulator.Simulator.launch", lambda *arguments: (found,)
    )


# ---------------------------------------------------------------------------- what is raised


def test_a_race_is_raised_after_the_run() -> None:
    a, out = arrays()
    error = caught(tilewright.compile(turned, check=True), a, out)
    assert error.kind == "race" and error.code == "check"
    assert [each.kind for each in error.findings] == ["race"]
    assert error.findings[0].severity == "error"
    assert set(out) != {0.0}, "the outputs are as computed"


def test_what_is_in_order_is_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    a, out = arrays()
    tilewright.compile(orderly, check="strict")(a, out)
    assert np.array_equal(out, a[::-1])
    assert capsys.readouterr().err == ""


def test_without_check_nothing_is_checked() -> None:
    tilewright.compile(turned)(*arrays())
    tilewright.compile(turned, check=False)(*arrays())


def test_a_call_may_be_checked_by_itself() -> None:
    executable = tilewright.compile(turned)
    executable(*arrays())
    assert caught(executable, *arrays(), check=True).kind == "race"
    executable(*arrays())


def test_a_call_may_leave_the_check_away() -> None:
    executable = tilewright.compile(turned, check=True)
    executable(*arrays(), check=False)
    assert caught(executable, *arrays()).kind == "race"


def test_kinds_may_be_allowed() -> None:
    tilewright.compile(turned, check="strict", allow={"race"})(*arrays())
    tilewright.compile(turned, check=True)(*arrays(), allow=["race"])
    tilewright.compile(turned, check=True, allow="race")(*arrays())
    assert caught(tilewright.compile(turned, check=True, allow={"deadlock"}), *arrays())


def test_a_fault_is_raised_as_a_finding_from_the_fault() -> None:
    error = caught(tilewright.compile(outside, check=True), np.zeros(64, np.float32))
    assert error.kind == "out-of-bounds"
    assert isinstance(error.__cause__, tilewright.MemoryFault)
    assert error.findings[0].location == error.__cause__.location


def test_a_fault_that_is_allowed_is_still_a_fault() -> None:
    executable = tilewright.compile(outside, check=True, allow={"out-of-bounds"})
    with pytest.raises(tilewright.MemoryFault):
        executable(np.zeros(64, np.float32))


def test_warnings_are_told_once_and_raised_only_by_strict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warning(monkeypatch, "warning")
    executable = tilewright.compile(orderly, check=True)
    executable(*arrays())
    said = capsys.readouterr().err
    assert "the checker found 1 warning in orderly" in said and "warning: a hazard [race]" in said
    executable(*arrays())
    assert capsys.readouterr().err == ""
    error = caught(executable, *arrays(), check="strict")
    assert error.findings[0].severity == "warning"
    executable(*arrays(), allow={"race"}, check="strict")


def test_the_error_survives_a_pickle() -> None:
    error = caught(tilewright.compile(turned, check=True), *arrays())
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.findings == error.findings


# ---------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"check": "often"}, "'strict'"),
        ({"check": True, "allow": {"hazard"}}, "missing-proxy-fence"),
        ({"allow": ["race", "hazard"]}, "missing-proxy-fence"),
    ],
)
def test_wrong_options_are_typed_errors(options: dict[str, Any], expected: str) -> None:
    for act in (
        lambda: tilewright.compile(orderly, **options),
        lambda: tilewright.compile(orderly)(*arrays(), **options),
    ):
        with pytest.raises(tilewright.LaunchError) as raised:
            act()
        assert raised.value.code == "bad-option"
        assert expected in str(raised.value.expected)


def test_the_gpu_does_not_check() -> None:
    with pytest.raises(tilewright.LaunchError) as raised:
        tilewright.compile(orderly, backend="gpu", check=True)
    assert raised.value.code == "bad-option" and "'check'" in raised.value.message
    assert raised.value.expected == 'backend="sim", or "auto"'


def test_check_means_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Gpu:
        raise AssertionError("a GPU is looked for")

    monkeypatch.setattr(driver, "find_gpu", never)
    assert tilewright.compile(orderly, check=True).backend == "sim"


def test_parameters_may_have_the_names_of_options() -> None:
    out = np.zeros(1, np.int32)
    given: dict[str, Any] = {"check": 3, "allow": 4}
    tilewright.compile(with_names_of_options)(out, **given)
    assert out[0] == 7
    tilewright.compile(with_names_of_options, check="strict")(out, **given)
    assert out[0] == 7


def test_a_session_checks_all_calls() -> None:
    executable = tilewright.compile(turned)
    with driver.session(driver.Defaults(check=True)):
        assert caught(executable, *arrays()).kind == "race"
        assert caught(tilewright.compile(turned, check=False), *arrays()).kind == "race"
    executable(*arrays())
    with driver.session(driver.Defaults(check=True, allow=frozenset({"race"}))):
        executable(*arrays())


def test_findings_of_a_session_are_collected_and_not_raised() -> None:
    found: list[Finding] = []
    with driver.session(driver.Defaults(check=True, on_findings=found.extend)):
        tilewright.compile(turned)(*arrays())
        with pytest.raises(tilewright.CheckError):
            tilewright.compile(outside)(np.zeros(64, np.float32))
    assert [each.kind for each in found] == ["race", "out-of-bounds"]


# ---------------------------------------------------------------------------- schedules


@T.function
def counting(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.lane_id() == 0:
        Out[0] = Out[0] + 1
        T.cuda.printf("%d\n", Out[0])


def test_other_schedules_leave_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    out = np.zeros(1, np.int32)
    with driver.session(driver.Defaults(check=True, schedules=5)):
        tilewright.compile(counting)(out)
    assert out[0] == 1 and capsys.readouterr().out == "1\n"


def seen(schedule: str) -> Any:
    """Let the simulator find something by one schedule only; gives what ran."""
    ran: list[str] = []

    def launch(simulator: Any, *rest: Any) -> tuple[Finding, ...]:
        options = simulator.options
        name = f"random:{options.seed}" if options.schedule == "random" else options.schedule
        ran.append(name)
        return (Finding("race", "error", "a hazard", actor="warp 0"),) if name == schedule else ()

    return ran, launch


@pytest.mark.parametrize("schedule", ["late", "eager", "random:1", "random:3"])
def test_findings_name_the_schedule_that_shows_them(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, launch = seen(schedule)
    monkeypatch.setattr("tilewright.runtime.simulator.Simulator.launch", launch)
    with driver.session(driver.Defaults(check=True, schedules=3)):
        (finding,) = caught(tilewright.compile(orderly), *arrays()).findings
    assert finding.schedule == schedule
    assert f"the schedule {schedule} shows it again" in str(finding)
    assert sorted(ran) == ["eager", "late", "random:1", "random:2", "random:3"]
    assert ran[-1] == "late", "its own schedule is the last, and its outputs stay"
    # And it replays, and says so again.
    ran, launch = seen(schedule)
    monkeypatch.setattr("tilewright.runtime.simulator.Simulator.launch", launch)
    replayed = caught(tilewright.compile(orderly, schedule=schedule, check=True), *arrays())
    assert replayed.findings[0].schedule == schedule
    assert ran == [schedule]


# ---------------------------------------------------------------------------- the same again


def test_reports_are_the_same_on_any_number_of_threads() -> None:
    @T.function
    def many(Out: T.Tensor((640,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=10, block=64))
        i = T.cuda.thread_idx("x")
        tile = T.alloc_shared((64,), "float32", layout="default")
        tile[i] = T.float32(1)
        Out[T.cuda.block_idx("x") * 64 + i] = tile[63 - i]
        if T.cuda.block_idx("x") == 7:
            Out[i + 600] = T.float32(2)

    texts = {
        str(
            caught(tilewright.compile(many, check=True, workers=workers), np.zeros(640, np.float32))
        )
        for workers in (1, 1, 2, 7)
    }
    assert len(texts) == 1
    (text,) = texts
    assert "[race]" in text and "[out-of-bounds]" in text
    assert not re.search(r"0x[0-9a-f]{6,}", text), "no address of the host is told"

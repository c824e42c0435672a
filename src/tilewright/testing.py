"""The checker in pytest: a fixture that watches all launches of a test.

May import everything but `cli`. Installed with the package, as a plugin of pytest.

    def test_product(tilewright_check):
        product(a, b, out)          # an error that the checker finds here fails the test
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import pytest

from tilewright import driver
from tilewright.base.findings import Finding, counted
from tilewright.compat.collected import Collected
from tilewright.runtime.checking import Checking

_ALLOW, _STRICT = "tilewright_allow", "tilewright_strict"
_watch = pytest.StashKey[tuple[Collected, Checking]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the ini file."""
    parser.addini(_ALLOW, "kinds of findings that are not told by tilewright_check", "args", [])
    parser.addini(_STRICT, "let tilewright_check fail on warnings too", "bool", False)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", f"{_ALLOW}(*kinds): findings that tilewright_check does not tell in this test"
    )


@pytest.fixture
def tilewright_check(request: pytest.FixtureRequest) -> Iterator[Collected]:
    """Check all launches of a test; the test fails by what the checker finds.

    A call that the test itself has checked raises `CheckError`, as without the fixture, and what
    it raises is not told again. Gives what is collected: `.findings()` are those so far. Kinds are
    allowed by the marker `tilewright_allow`, or by the ini file's option of that name; by
    `tilewright_strict` there, warnings fail a test too.
    """
    allow = set(request.config.getini(_ALLOW))
    for marker in request.node.iter_markers(_ALLOW):
        allow.update(marker.args)
    checking = Checking(bool(request.config.getini(_STRICT)), frozenset(allow))
    check: driver.Check = "strict" if checking.strict else True
    with Collected() as collected:
        request.node.stash[_watch] = (collected, checking)
        watched = replace(
            driver.defaults(),
            check=check,
            allow=checking.allow,
            on_findings=collected,
            raises_asked=True,
        )
        with driver.session(watched):
            yield collected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test fail by what was found while it ran, whatever else became of it."""
    try:
        result = yield
    except BaseException:
        _show(item)
        raise
    watch = item.stash.get(_watch, None)
    if watch is not None and watch[1].fails(found := watch[0].findings()):
        pytest.fail(_text(found), pytrace=False)
    _show(item)
    return result


def _show(item: pytest.Item) -> None:
    """Add what was found to the report of a test, which shows it if the test fails."""
    watch = item.stash.get(_watch, None)
    if watch is not None and (found := watch[0].findings()):
        item.add_report_section("call", "tilewright", _text(found))


def _text(findings: tuple[Finding, ...]) -> str:
    return "\n\n".join([f"the checker found {counted(findings)}", *map(str, findings)])

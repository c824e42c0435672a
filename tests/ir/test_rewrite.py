"""The rewrite engine and the walkers: sharing, order, splicing, locations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import ALL, load, program, scalar, tensor

from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Binary, Constant, Expr, Var, binary, int32, located
from tilewright.ir.rewrite import map_statements, rewrite, substitute
from tilewright.ir.statements import Assign, Bind, Declare, For, If, Launch, Print, Stmt, Store
from tilewright.ir.visit import (
    children,
    defined,
    free_variables,
    root,
    variables,
    walk,
    walk_expressions,
    walk_kinds,
    walk_statements,
    written,
)

x, y, i = scalar("x"), scalar("y"), scalar("i")


def doubled(node: Expr) -> Expr | None:
    match node:
        case Binary(op="mul", right=Constant(value=2)):
            return node.left + node.left
        case _:
            return None


def test_nothing_changes_nothing_is_copied() -> None:
    for build in ALL.values():
        before = build()
        assert rewrite(before, ((Expr, lambda node: None),)) is before
        assert map_statements(before, lambda stmt: None) is before


def test_unchanged_parts_are_shared() -> None:
    expr = (x + y) * (x * 2)
    after = rewrite(expr, ((Binary, doubled),))
    assert isinstance(after, Binary)
    assert after == (x + y) * (x + x)
    assert isinstance(expr, Binary)
    assert after.left is expr.left


def test_bottom_up_rules_meet_their_own_results() -> None:
    down = ((Constant, lambda c: int32(c.value - 1) if c.value > 0 else None),)
    assert rewrite(x + 9, down) == Binary("add", x, int32(0), x.type)


def test_top_down_does_not_enter_replacements() -> None:
    assert rewrite(x * y, ((Var, lambda var: x + 1),), top_down=True) == (x + 1) * (x + 1)


def test_replacements_take_locations() -> None:
    here, there = Location("k.py", 1), Location("k.py", 2)
    expr = located(x * 2, here)
    assert rewrite(expr, ((Binary, doubled),)).location == here
    kept = rewrite(expr, ((Binary, lambda node: replace(x, location=there)),))
    assert kept.location == there


def test_statements_are_spliced_and_removed() -> None:
    say = Print("x", ())
    block = (Declare(x, None), If(binary("lt", y, 1), (say, say)), say)
    twice = rewrite(block, ((Print, lambda stmt: (Assign(x, y), Assign(x, y))),))
    assert len(twice) == 4
    assert map_statements(block, lambda stmt: () if stmt == say else None) == (
        block[0],
        If(binary("lt", y, 1), ()),
    )


def test_named_variables_are_renamed_never_replaced() -> None:
    block: tuple[Stmt, ...] = (Bind(x, y + 1), Print("%d", (x,)))
    assert substitute(block, {"x": scalar("z")}) == (
        Bind(scalar("z"), y + 1),
        Print("%d", (scalar("z"),)),
    )
    assert substitute(block, {"x": int32(3)}) == (Bind(x, y + 1), Print("%d", (int32(3),)))


def test_walkers() -> None:
    r = tensor("r", (4,), "int32", Space.LOCAL)
    loop = For(i, int32(0), x, int32(1), (Store(r, (i,), load(r, 0) + y), Assign(y, i)))
    assert [each.name for each in variables(loop)] == ["i", "x", "r", "y"]
    assert [each.name for each in free_variables(loop)] == ["x", "r", "y"]
    assert defined(loop) == (i,)
    assert list(walk_statements(loop)) == [loop, *loop.body]
    assert [written(stmt) for stmt in loop.body] == [(r,), (y,)]
    assert root(load(r, 0)) == load(r, 0)
    assert list(children(x + y)) == [x, y]
    assert [type(each).__name__ for each in walk(x + y)] == ["Binary", "Var", "Var"]


@pytest.mark.parametrize("kinds", [(Var,), (Constant, Store), (Stmt,), (Expr,), (Launch,)])
def test_walking_over_some_classes_finds_what_walking_over_all_does(kinds: tuple[type]) -> None:
    for build in ALL.values():
        made = build()
        assert list(walk_kinds(made, *kinds)) == [e for e in walk(made) if isinstance(e, kinds)]


def test_what_is_known_of_a_node_is_not_taken_for_its_changed_copies() -> None:
    loop = For(i, int32(0), x, int32(1), (Assign(y, i + 1), Assign(y, x)))
    assert [each.name for each in walk_kinds(loop, Var)] == ["i", "x", "y", "i", "y", "x"]
    after = substitute(loop, {"x": y * 2})
    assert [each.name for each in walk_kinds(after, Var)] == ["i", "y", "y", "i", "y", "y"]
    assert list(walk_kinds(replace(after, body=()), Assign)) == []
    assert substitute(after, {"y": scalar("z")}) == substitute(
        loop, {"x": scalar("z") * 2, "y": scalar("z")}
    )


@given(st.lists(st.sampled_from(["x", "y", "i"]), min_size=1, max_size=6))
def test_substitution_leaves_no_variable(names: list[str]) -> None:
    expr: Expr = int32(7)
    for name in names:
        expr = expr * scalar(name) - scalar(name)
    after = substitute(expr, {name: int32(2) for name in names})
    assert not [each for each in walk_expressions(after) if isinstance(each, Var)]
    assert program(Print("%d", (after,))).kernels[0].body

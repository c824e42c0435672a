"""What a helper is given is what it was at the call, whatever the helper then changes."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright import driver
from tilewright.base.errors import FrontendError
from tilewright.frontend import KernelFunction, parse, parse_function

HEAD = "from functools import partial\nfrom tilewright import simt as T\n"
KERNEL = """
@T.function
def k(A: T.Tensor((8,), "float32"), O: T.Tensor((8,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    v: T.float32[4]
    s = T.alloc_shared((4,), "float32")
    ints: T.int32[2]
    ints[0] = 1
    x: T.float32 = 7.0
    i: T.int32 = 1
    shared = T.shared_scalar("float32", 7.0)
    for j in range(4):
        v[j] = 7.0
        s[j] = 7.0
    A[1] = 7.0
    A[0] = 7.0
    p = A.ptr_to([0])
"""
# A helper gives back its argument after something has changed.
HELPERS = {
    "inline": "@T.inline\ndef same(value, change):\n    change()\n    return value\n",
    "macro": "@T.macro\ndef same(value, change):\n    change()\n    return value\n",
    "plain": "def same(value, change):\n    change()\n    return value\n",
    "nested": "def inner(value, change):\n    change()\n    return value\n"
    "@T.inline\ndef same(value, change):\n    return inner(value, change)\n",
    "method": "@T.meta_class\nclass Helper:\n    def same(self, value, change):\n"
    "        change()\n        return value\nsame = Helper().same\n",
    "object": "@T.meta_class\nclass Holder:\n    def __init__(self, value):\n"
    "        self.value = value\n    def get(self):\n        return self.value\n"
    "@T.inline\ndef same(value, change):\n    held = Holder(value)\n    change()\n"
    "    return held.get()\n",
    "generator": "def one(value):\n    yield value\n"
    "@T.inline\ndef same(value, change):\n    found = one(value)\n    change()\n"
    "    return list(found)[0]\n",
    "partial": "@T.inline\ndef both(value, change):\n    change()\n    return value\n"
    "def same(value, change):\n    return partial(both, value)(change)\n",
}
# An argument, and what changes it.
ARGUMENTS = {
    "element of an array": ("v[0]", "v[0] = 9.0"),
    "element at a cell": ("v[i]", "i = 3\n        v[1] = 9.0\n        v[3] = 9.0"),
    "element at an element": ("A[ints[0]]", "ints[0] = 0\n        A[0] = 9.0"),
    "element of shared memory": ("s[2]", "s[2] = 9.0"),
    "element of global memory": ("A[0]", "A[0] = 9.0"),
    "element at a pointer": ("p[0]", "A[0] = 9.0"),
    "cell": ("x", "x = 9.0"),
    "shared scalar": ("shared", "shared = 9.0"),
    "expression": ("x + v[0] - 7.0", "x = 9.0\n        v[0] = 9.0"),
}
TEXTS = {
    "view": ("s.sub[i:i + 1]", "s[3] = 9.0\n        i = 3", "[0]"),
    "view of a view": ("s.view(2, 2).sub[i]", "s[0] = 9.0\n        i = 0", "[0]"),
    "pointer": ("s.ptr_to([i])", "s[3] = 9.0\n        i = 3", "[0]"),
    "list": ("[x, v[0]]", "x = 9.0\n        v[0] = 9.0", "[1]"),
    "dictionary": ("{'x': x}", "x = 9.0", "['x']"),
}


def run(body: str, before: str = "") -> tuple[np.ndarray, KernelFunction]:
    """Run a kernel of one thread; give what it leaves in O."""
    made = parse_function(HEAD + before + KERNEL + textwrap.indent(textwrap.dedent(body), "    "))
    assert parse(made.script()) == made.program, made.script()
    result = np.zeros(8, np.float32)
    driver.compile(made, backend="sim")(np.zeros(8, np.float32), result)
    return result, made


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("helper", HELPERS)
def test_a_number_is_what_it_was(helper: str, argument: str) -> None:
    given, change = ARGUMENTS[argument]
    result, _ = run(
        f"""
    def change():
        {change}
    O[0] = same({given}, change)
    O[1] = same(change=change, value={given})
    """,
        HELPERS[helper],
    )
    # The second call finds what the first one has changed.
    changed = 11.0 if argument == "expression" else 9.0
    assert result.tolist()[:2] == [7.0, changed]


@pytest.mark.parametrize("argument", TEXTS)
@pytest.mark.parametrize("helper", HELPERS)
def test_a_place_or_a_container_is_what_it_was(helper: str, argument: str) -> None:
    given, change, item = TEXTS[argument]
    result, _ = run(
        f"""
    def change():
        {change}
    O[0] = same({given}, change){item}
    """,
        HELPERS[helper],
    )
    assert result[0] == 7.0


@pytest.mark.parametrize("form", ["same = lambda value, change: (change(), value)[1]", ""])
def test_local_functions_get_values(form: str) -> None:
    local = form or "def same(value, change):\n        change()\n        return value"
    result, _ = run(
        f"""
    def change():
        v[0] = 9.0
    {local}
    O[0] = same(v[0], change)
    O[1] = same(*[v[0]], **{{"change": change}})
    """
    )
    assert result.tolist()[:2] == [7.0, 9.0]


def test_a_default_is_what_it_was_at_the_definition() -> None:
    result, _ = run(
        """
    def get(value=v[0]):
        return value
    v[0] = 9.0
    O[0] = get()
    """
    )
    assert result[0] == 7.0


def test_the_finding_prints_what_runs() -> None:
    before = """
@T.inline
def put(buf, val):
    buf[0] = 0
    buf[1] = val
"""
    result, made = run("put(v, v[0])\nO[0] = v[1]", before)
    assert result[0] == 7.0
    lines = [line.strip() for line in str(made).splitlines()]
    assert lines.index("val = v[0]") < lines.index("v[0] = T.float32(0.0)")
    assert "v[1] = val" in lines


def test_python_code_reads_at_once() -> None:
    before = """
def swap(v):
    old = v[0]
    v[0] = v[1]
    v[1] = old
def turns(v):
    for _ in range(2):
        yield v[0]
"""
    result, _ = run(
        """
    v[0], v[1] = 1.0, 2.0
    swap(v)
    O[0], O[1] = v[0], v[1]
    for n, each in enumerate(turns(v)):
        v[0] = 5.0
        O[2 + n] = each
    """,
        before,
    )
    assert result.tolist()[:4] == [2.0, 1.0, 2.0, 5.0]


def test_items_are_what_they_were_before_the_loop() -> None:
    result, _ = run(
        """
    v[0], v[1] = 1.0, 2.0
    for n, each in enumerate([v[0], v[1]]):
        v[1] = 9.0
        O[n] = each
    for each in (v[0], v[1]):
        v[1] = 4.0
        O[2] = each
    """
    )
    assert result.tolist()[:3] == [1.0, 2.0, 9.0]


@pytest.mark.parametrize(
    "text",
    [
        "O[0], O[1] = [bump(), bump()]",
        "O[0], O[1] = [bump() for _ in range(2)]",
        "d = {0: bump(), 1: bump()}\nO[0], O[1] = d[0], d[1]",
        "d = {n: bump() for n in range(2)}\nO[0], O[1] = d[0], d[1]",
        "def two(a, b):\n    O[0] = a\n    O[1] = b\ntwo(bump(), bump())",
        "i = 0\nw = T.alloc_local((9, 9), 'float32')\nw[8, 0] = 0\n"
        "w[i, step()] = 8.0\nO[0] = w[0, 8]\nO[1] = 9.0",
    ],
)
def test_what_is_evaluated_first_is_read_first(text: str) -> None:
    before = """
    @T.inline
    def bump():
        v[0] = v[0] + 1.0
        return v[0]
    @T.inline
    def step():
        i = 8
        return i
    """
    result, _ = run(textwrap.dedent(before) + text)
    assert result.tolist()[:2] == [8.0, 9.0]


def test_an_expression_is_passed_as_it_is_if_that_is_asked_for() -> None:
    before = "@T.inline\ndef late(value, v):\n    v[0] = 9.0\n    return value\n"
    result, _ = run("O[0] = late(T.meta_var(v[0]), v)", before)
    assert result[0] == 9.0


# ---------------------------------------------------------------------------- destinations

ADD = 'T.ptx["add.f32"]({0}, {0}, T.float32(1.0))'


@pytest.mark.parametrize(
    ("given", "result"),
    [("v[0]", "v[0]"), ("x", "x"), ("s[1]", "s[1]"), ("A[i]", "A[1]"), ("shared", "shared")],
)
@pytest.mark.parametrize("kind", ["@T.inline\n", "", "@T.macro\n"])
def test_an_instruction_writes_to_the_place_that_a_helper_is_given(
    kind: str, given: str, result: str
) -> None:
    text = f"{kind}def add(place):\n    {ADD.format('place')}\n    return place\n"
    found, _ = run(f"O[0] = add({given})\nO[1] = {result}", text)
    assert found.tolist()[:2] == [8.0, 8.0]


def test_a_helper_may_add_to_a_place_in_a_loop() -> None:
    before = f"""
@T.inline
def inner(place):
    {ADD.format("place")}
@T.inline
def add(place, O):
    old = place
    for i in range(3):
        inner(place)
        O[2 + i] = place
    O[1] = old
    return place
"""
    found, _ = run("O[0] = add(v[0], O)\nO[5] = v[0]", before)
    assert found.tolist()[:6] == [10.0, 7.0, 8.0, 9.0, 10.0, 10.0]


def test_a_destination_that_is_only_written_is_not_read() -> None:
    before = '@T.inline\ndef copy(to, value):\n    T.ptx["mov.b32"](to, value)\n'
    _, made = run("copy(v[1], v[0])", before)
    lines = [line.strip() for line in str(made).splitlines()]
    assert 'T.ptx["mov.b32"](v[1], value)' in lines
    assert not any(line.startswith("to") for line in lines)


def test_an_address_is_that_of_the_place() -> None:
    before = """
@T.inline
def add(place):
    T.cuda.atomic_add(T.address_of(place), 1.0)
    return place
"""
    found, _ = run("O[0] = add(A[i])\nO[1] = A[1]", before)
    assert found.tolist()[:2] == [8.0, 8.0]


def test_a_loop_does_not_mix_a_value_and_its_address() -> None:
    before = """
@T.inline
def add(place, O):
    for i in range(3):
        O[i] = place
        T.cuda.atomic_add(T.address_of(place), 1.0)
"""
    with pytest.raises(FrontendError) as caught:
        run("add(A[i], O)", before)
    assert caught.value.code == "unbound-name"
    assert caught.value.location is not None
    assert "address_of" in caught.value.location.source_line()


def test_the_clock_is_read_where_it_stands() -> None:
    before = "def span():\n    first = T.cuda.clock64()\n    return T.cuda.clock64() - first\n"
    _, made = run("t = span()\nO[0] = T.cast(t, 'float32')", before)
    lines = [line.strip() for line in str(made).splitlines()]
    reads = [line for line in lines if "clock64" in line]
    assert [line.split(" = ")[1] for line in reads] == [
        'T.special_register("clock64", "uint64")'
    ] * 2

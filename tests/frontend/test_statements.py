"""Loops, branches, stores and what has no meaning in a kernel."""

from __future__ import annotations

import pytest
from reading import printed, refused


def test_loops_of_every_kind() -> None:
    body = """
    for i in range(2, n, 3):
        B[i] = 0
    for i in T.serial(4, unroll=True):
        B[i] = 1
    for i in T.unroll(1, 4):
        B[i] = 2
    for i in T.vectorized(4):
        B[i] = 3
    for i in T.parallel(n, dtype="uint32"):
        B[i] = 4
    """
    assert printed(body) == [
        "for i in T.serial(2, n, step=3):",
        "    B[i] = 0",
        "for i_1 in T.unroll(4):",
        "    B[i_1] = 1",
        "for i_2 in T.unroll(1, 4):",
        "    B[i_2] = 2",
        "for i_3 in T.vectorized(4):",
        "    B[i_3] = 3",
        'for i_4 in T.parallel(T.cast(n, "uint32"), dtype="uint32"):',
        "    B[i_4] = 4",
    ]


def test_a_grid_is_loops_in_loops() -> None:
    assert printed("for i, j in T.grid(4, n):\n    A[i, j] = 0") == [
        "for i in range(4):",
        "    for j in range(n):",
        "        A[i, j] = T.float32(0.0)",
    ]


def test_a_loop_over_python_data_runs_now() -> None:
    body = "for i, name in enumerate(['a', 'b']):\n    if name == 'b':\n        B[i] = i"
    assert printed(body) == ["B[1] = 1"]


def test_break_and_continue_of_a_loop_that_runs_now() -> None:
    body = """
    for i in [0, 1, 2, 3]:
        if i == 1:
            continue
        if i == 3:
            break
        B[i] = i
    """
    assert printed(body) == ["B[0] = 0", "B[2] = 2"]


def test_while_in_the_kernel_and_now() -> None:
    body = """
    x: T.int32 = n
    while x > 1:
        x = x // 2
        if x == 5:
            continue
        break
    while True:
        return
    k = 4
    while k > 3:
        k -= 1
    B[0] = k
    """
    assert printed(body) == [
        "x: T.int32 = n",
        "while x > 1:",
        "    x = x // 2",
        "    if x == 5:",
        "        continue",
        "    break",
        "while True:",
        "    return",
        "B[0] = 3",
    ]


def test_a_condition_that_issues_is_evaluated_in_every_turn() -> None:
    body = """
    x: T.int32 = 0
    while T.cuda.atomic_cas(B.ptr_to([x]), 0, 1) != 0 and x < 9:
        if x == 3:
            continue
        x += 1
    """
    by_hand = """
    x: T.int32 = 0
    while True:
        old = T.cuda.atomic_cas(B.ptr_to([x]), 0, 1)
        if not (old != 0 and x < 9):
            break
        if x == 3:
            continue
        x += 1
    """
    assert printed(body) == printed(by_hand)
    refused("y = 1\nwhile T.cuda.any_sync(-1, n > «y»):\n    y = 2", "unbound-name")


@pytest.mark.parametrize("text", ["T.cuda.cta_sync", "T.ptx.fence.proxy.async_", "len"])
def test_a_call_without_its_parentheses_is_refused(text: str) -> None:
    error = refused(f"«{text}»", "bad-call")
    assert f"{text}(…)" in (error.hint or "")


def test_branches_in_the_kernel_and_now() -> None:
    body = """
    if n > 1 and not (n == 3 or B[0] < n < 9):
        B[0] = 1
    elif n:
        B[0] = 2
    else:
        pass
    if len("ab") == 2:
        B[1] = 1
    else:
        nonsense()
    """
    assert printed(body) == [
        "if n > 1 and not (n == 3 or B[0] < n and n < 9):",
        "    B[0] = 1",
        "elif n != 0:",
        "    B[0] = 2",
        "B[1] = 1",
    ]


def test_a_choice_is_a_selection_or_is_made_now() -> None:
    body = "B[0] = 1 if n > 2 else n\nB[1] = 2 if True else nonsense"
    assert printed(body) == ["B[0] = T.select(n > 2, 1, n)", "B[1] = 2"]


def test_stores_convert_to_the_element_type() -> None:
    assert printed(
        "A[n, 0] = n\nB[0] = n\nA[n, 1] = A[0, 0] * T.float32(2)",
        "A: T.Tensor((4, 4), 'float16'), B: T.Tensor((4,), 'uint8'), n: T.int32",
    ) == [
        'A[n, 0] = T.cast(n, "float16")',
        'B[0] = T.cast(n, "uint8")',
        'A[n, 1] = T.cast(T.cast(A[0, 0], "float32") * T.float32(2.0), "float16")',
    ]


def test_assertions_in_the_kernel_and_now() -> None:
    assert printed('assert n > 0, "positive"\nassert n < 9\nassert 1 < 2') == [
        'assert n > 0, "positive"',
        'assert n < 9, "n < 9"',
    ]
    refused('«assert 1 > 2, "no"»', "static-assertion")


def test_what_follows_the_end_of_a_block_is_not_read() -> None:
    assert printed("if n > 1:\n    return\n    B[0] = 1\nB[1] = 2") == [
        "if n > 1:",
        "    return",
        "B[1] = 2",
    ]


def test_an_operand_is_read_before_what_a_later_one_does() -> None:
    body = """
    x: T.int32 = 0
    @T.inline
    def step():
        x_ = T.cuda.atomic_add(B.ptr_to([0]), 1)
        return x_
    B[1] = B[0] + step()
    """
    assert printed(body)[1:] == [
        "value = B[0]",
        "x_: T.int32",
        'T.ptx["atom.global.add.s32"](x_, B.ptr_to([0]), 1)',
        "B[1] = value + x_",
    ]


@pytest.mark.parametrize("target", ["B[B[1]]", "x", "o.x"])
def test_what_is_added_to_is_read_before_what_is_added(target: str) -> None:
    body = f"""
    x: T.int32 = n
    holder = type("Holder", (), {{}})
    o = holder()
    o.x = T.local_scalar("int32", n)
    {target} += T.cuda.atomic_add(B.ptr_to([0]), 1)
    """
    lines = printed(body)
    atomic = next(i for i, line in enumerate(lines) if "atom.global.add" in line)
    assert any(line.startswith("value") for line in lines[:atomic]), lines
    assert "B[B[1]]" not in lines[-1]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("«try:\n    pass\nexcept E:\n    pass»", "try"),
        ("«with open('x') as f:\n    pass»", "with"),
        ("for i in range(3):\n    pass\nelse:\n    «pass»", "else"),
        ("while n > 3:\n    pass\nelse:\n    «pass»", "else"),
        ("B[0] = («y := n»)", ":="),
        ("«yield»", "yield"),
        ("«del n»", "del"),
        ("«global q»", "global"),
        ("«class C:\n    pass»", "class"),
        ("«import os»", "import"),
        ("«raise ValueError»", "raise"),
        ("«match n:\n    case _:\n        pass»", "match"),
        ("for i, j in T.grid(2, 2):\n    «break»", "several loops"),
        ("for i in [1, 2]:\n    if n > i:\n        «break»", "condition of the kernel"),
        ("«return 1»", "return"),
    ],
)
def test_statements_without_a_meaning(statement: str, word: str) -> None:
    error = refused(statement, "unsupported-statement")
    assert word in error.message


def test_conditions_cannot_issue_anything() -> None:
    error = refused("B[0] = 1 if n > 2 else «T.cuda.elect_sync()»", "unsupported-expression")
    assert "if" in (error.hint or "")


def test_indices_are_checked() -> None:
    refused("B[0] = «A[0]»", "bad-index")
    refused("B[0] = «A[0, 1, 2]»", "bad-index")
    refused("B[0] = «A[0, 32]»", "bad-index")
    refused("«A[-1, 0]» = 0", "bad-index")
    refused("B[0] = «B[A[0, 0]]»", "bad-index")


def test_regions_are_not_assigned() -> None:
    refused("«A[0:2, 0]» = 1", "type-mismatch")
    refused("«A[0, 0]» = A[0:2, 0]", "type-mismatch")


def test_python_that_fails_is_located() -> None:
    error = refused("x = «[1, 2][5]»", "trace-error")
    assert "IndexError" in (error.found or "")
    refused("x = «min(n, 3)»", "not-constant")
    refused("x = [i for i in «range(n)»]", "not-constant")
    refused("for i in «A»:\n    pass", "unsupported-expression")
    refused("x = «A + 1»", "type-mismatch")
    refused("x = «n + 'a'»", "type-mismatch")
    refused("«n(3)»", "trace-error")


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        ("B[0] = «B[A[0, n + 1]]»", "bad-index", "float32 A[0, n + 1]"),
        ("«T.static_assert(n * 2 > 3)»", "not-constant", "bool n * 2 > 3"),
        ("T.ptx.add.f32(«A[0, 0] + 1», A[0, 0], 1)", "operand-type", "float32 A[0, 0] + "),
    ],
)
def test_errors_show_expressions_as_source(text: str, code: str, found: str) -> None:
    assert (refused(text, code).found or "").startswith(found)


def test_literals_fit_their_type() -> None:
    refused("B[0] = «n + 3000000000»", "type-mismatch")
    refused("«B[0]» = 99999999999", "type-mismatch")
    assert printed("B[0] = n & 0xFFFFFFFF\nB[1] = T.uint32(n) + 3000000000") == [
        "B[0] = n & -1",
        'B[1] = T.cast(T.cast(n, "uint32") + T.uint32(3000000000), "int32")',
    ]


def test_a_comprehension_binds_names_of_its_own() -> None:
    body = "x = n + 1\nfor i in range(4):\n    B[i] = x\n    B[0] = [x for x in (1, 2)][1]"
    assert printed(body)[-1] == "    B[0] = 2"


def test_assertions_of_helpers() -> None:
    text = """
    def check(x):
        assert x > 3, "too small"
    @T.function
    def k(B: T.Tensor((4,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        «check(2)»
    """
    assert refused(text, "static-assertion", whole=True).message == "too small"


NOT_NUMBERS = {"tensor": "A", "row": "A.sub[0]", "pointer": "A.ptr_to([0, 0])"}


@pytest.mark.parametrize("value", NOT_NUMBERS.values(), ids=NOT_NUMBERS)
@pytest.mark.parametrize(
    "text",
    [
        "if «{}»:\n    B[0] = 1",
        "while «{}»:\n    B[0] = 1",
        "«assert {}»",
        "x = «1.0 if {} else 2.0»",
        "x = «1.0 if n > 1 else {}»",
        "x = «n > 1 and {}»",
        "x = «not {}»",
        "x = «{} == 3»",
        "x = «{} * 2»",
        "x = «-{}»",
        "x = «T.select({}, 1, 2)»",
        "x = «T.exp({})»",
        "T.cuda.any_sync(0xFFFFFFFF, «{}»)",
        "«B[0]» = {}",
    ],
)
def test_what_is_no_number_is_refused_where_it_is_used(text: str, value: str) -> None:
    error = refused(text.format(value), "type-mismatch")
    assert "'ne'" not in error.message
    assert "in global memory" in (error.found or "")


def test_a_pointer_is_moved_by_elements() -> None:
    body = "p = B.ptr_to([4])\nB[0] = (p - 1)[0] + (p + n)[0] + (2 + p)[0] + (p - n)[1]"
    assert printed(body)[1] == (
        'B[0] = T.read(T.offset(p, -4, "int32", 4)) + T.read(T.offset(p, n * 4, "int32", 4)) + '
        'T.read(T.offset(p, 8, "int32", 4)) + '
        'T.read(T.offset(T.offset(p, (0 - n) * 4, "int32", 4), 4, "int32", 4))'
    )
    refused("p = B.ptr_to([4])\nq = «p - p»", "type-mismatch")
    refused("p = B.ptr_to([4])\nq = «p - 0.5»", "bad-index")


@pytest.mark.parametrize("index", ["4294967295", "2**31", "-2**31 - 1", "2**40"])
@pytest.mark.parametrize(
    "text", ["n = «B[{}]»", "«B[{}]» = 1", "p = «B.ptr_to([{}])»", "s = «B.sub[{}]»"]
)
def test_an_index_that_is_no_int32_is_shown_as_it_is_written(text: str, index: str) -> None:
    error = refused(text.format(index), "bad-index")
    assert error.found == str(eval(index))


@pytest.mark.parametrize("width", ["0", "-1", "3", "12", "31", "33", "64"])
@pytest.mark.parametrize(
    "call",
    [
        "T.cuda.warp_reduce(n, 'sum', «{}»)",
        "T.cuda.warp_reduce(n, 'max', width=«{}»)",
        "T.cuda.warp_sum(n, «{}»)",
        "T.cuda.warp_min(n, width=«{}»)",
        "T.cuda.__shfl_sync(0xFFFFFFFF, n, 1, «{}»)",
        "T.cuda.__shfl_xor_sync(0xFFFFFFFF, n, 1, width=«{}»)",
    ],
)
def test_lanes_exchange_in_segments_of_a_warp(call: str, width: str) -> None:
    error = refused("x = " + call.format(width), "bad-call")
    assert error.found == width


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_a_reduction_takes_as_many_shuffles_as_its_width_has_bits(width: int) -> None:
    lines = printed(f"x = T.cuda.warp_reduce(n, 'sum', {width})\nB[0] = x")
    assert sum("shfl" in line for line in lines) == width.bit_length() - 1


@pytest.mark.parametrize("count", ["0", "-1", "33"])
def test_a_reduction_is_over_the_warps_of_a_cta(count: str) -> None:
    body = "s = T.alloc_shared((32,), 'int32')\nx = T.cuda.cta_sum(n, «{}», s)"
    refused(body.format(count), "bad-call")

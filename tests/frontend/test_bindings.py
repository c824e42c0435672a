"""Names: what binds, what declares, what assigns, and what is not bound on every way."""

from __future__ import annotations

import pytest
from reading import printed, read, refused

from tilewright.base.errors import FrontendError


def test_a_plain_binding_is_bound_anew_under_another_name() -> None:
    assert printed("x = n + 1\nx = x * 2\nB[0] = x") == [
        "x = n + 1",
        "x_1 = x * 2",
        "B[0] = x_1",
    ]


def test_a_name_for_a_name_or_a_number_needs_no_binding() -> None:
    assert printed("x = n\ny = 4\nB[y] = x + y") == ["B[4] = n + 4"]


def test_let_binds_whatever_the_value() -> None:
    assert printed("x: T.let = n\ny: T.let[T.float32] = 1") == [
        "x: T.let = n",
        "y: T.let = T.float32(1.0)",
    ]


def test_a_cell_is_assigned_to_with_its_type() -> None:
    body = "x: T.int32 = n\nx += 1\nx = T.int64(n)\ny: T.float32\ny = x"
    assert printed(body) == [
        "x: T.int32 = n",
        "x = x + 1",
        'x = T.cast(T.cast(n, "int64"), "int32")',
        "y: T.float32",
        'y = T.cast(x, "float32")',
    ]


def test_a_copy_of_a_cell_keeps_the_value_of_now() -> None:
    assert printed("x: T.int32 = n\ny = x\nx = 7\nB[0] = y") == [
        "x: T.int32 = n",
        "y: T.let = x",
        "x = 7",
        "B[0] = y",
    ]


def test_cells_can_be_swapped() -> None:
    assert printed("x: T.int32 = 1\ny: T.int32 = 2\nx, y = y, x") == [
        "x: T.int32 = 1",
        "y: T.int32 = 2",
        "x_1: T.let = y",
        "y_1: T.let = x",
        "x = x_1",
        "y = y_1",
    ]


def test_what_is_kept_in_a_list_keeps_the_value_of_now() -> None:
    body = "x: T.int32 = n\nkept = [x + i for i in (0, 1)]\nx = 0\nB[kept[0]] = kept[1]"
    assert printed(body) == [
        "x: T.int32 = n",
        "value: T.let = x",
        "value_1 = x + 1",
        "x = 0",
        "B[value] = value_1",
    ]


def test_a_local_array_and_augmented_elements() -> None:
    assert printed("v: T.float32[4]\nv[0] = 1\nv[0] += A[0, 0]\nv[n] *= 2") == [
        'v = T.alloc_local((4,), "float32", layout="default")',
        "v[0] = T.float32(1.0)",
        "v[0] = v[0] + A[0, 0]",
        "v[n] = v[n] * T.float32(2.0)",
    ]


def test_scalars_that_calls_declare() -> None:
    body = 'x = T.local_scalar("float32", 1)\nx = 2\ns = T.shared_scalar("int32")\ns += 1\nB[0] = s'
    assert printed(body) == [
        "x: T.float32 = T.float32(1.0)",
        "x = T.float32(2.0)",
        's = T.alloc_shared((1,), "int32", layout="default")',
        "s[0] = s[0] + 1",
        "B[0] = s[0]",
    ]


def test_unpacking_and_starred_targets() -> None:
    assert printed("a, *b = (n, 1, 2)\n(c, d), e = (1, n + 1), b[0]\nB[c] = d + e + a") == [
        "d = n + 1",
        "B[1] = d + 1 + n",
    ]


def test_several_targets_share_one_binding() -> None:
    assert printed("x = y = n + 1\nB[0] = x + y") == ["x = n + 1", "B[0] = x + x"]


def test_a_name_bound_in_a_branch_is_lost_after_it() -> None:
    error = refused("if n > 1:\n    x = n * 2\nB[0] = «x»", "unbound-name")
    assert "branch" in error.message
    assert "x: T.int32" in (error.hint or "")
    assert ":7:9" in error.notes[0]


def test_a_name_bound_anew_in_a_branch_is_lost_after_it() -> None:
    refused("x = n\nif n > 1:\n    x = 2\nelse:\n    x = 3\nB[0] = «x»", "unbound-name")


def test_a_name_bound_in_a_loop_is_lost_after_it() -> None:
    refused("for i in range(4):\n    x = i\nB[0] = «x»", "unbound-name")
    refused("for i in range(4):\n    pass\nB[0] = «i»", "unbound-name")


def test_a_turn_cannot_read_what_the_last_one_bound() -> None:
    error = refused("x = n\nfor i in range(4):\n    «x» += i", "unbound-name")
    assert "x: T.int32" in (error.hint or "")
    refused("x = 0\nfor i in range(4):\n    B[i] = «x»\n    x = i", "unbound-name")
    refused("x = n\nwhile «x» < 4:\n    x = x + 1", "unbound-name")
    refused("x = n\nfor i in range(4):\n    if i > «x»:\n        x = i", "unbound-name")


def test_a_loop_may_bind_a_name_anew_before_it_reads_it() -> None:
    body = "x = n\nfor i in range(4):\n    x = i * 2\n    B[i] = x"
    assert printed(body)[1:] == ["    x = i * 2", "    B[i] = x"]


def test_a_loop_may_read_what_it_does_not_bind() -> None:
    body = "x = n + 1\nfor i in range(4):\n    B[i] = x\nfor i in range(4):\n    B[i] = x"
    assert printed(body)[0] == "x = n + 1"


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    error = refused("lane = n\nB[0] = «lnae»", "unbound-name")
    assert error.hint == "did you mean 'lane'?"


def test_a_tensor_is_no_value_of_a_cell() -> None:
    refused("x: T.float32 = 0\n«x» = A", "type-mismatch")


def test_the_wrong_number_of_values_is_refused() -> None:
    refused("«x, y» = (1, 2, 3)", "trace-error")


def test_a_declaration_needs_a_type_of_the_dialect() -> None:
    refused('x: «"nonsense"»', "unbound-name")
    refused("x: «3»", "bad-annotation")


# How a program puts a value into a place of an integer type.
INTEGER_PLACES = {
    "declared": "«x»: T.int32 = {}",
    "assigned": "x: T.int32 = 0\n«x» = {}",
    "called": "x = «T.local_scalar('int32', {})»",
    "shared": "x = T.shared_scalar('int32')\n«x» = {}",
    "let": "«x»: T.let[T.int32] = {}",
    "element": "v: T.int32[4]\n«v[0]» = {}",
    "parameter": "«B[n]» = {}",
    "pointer": "p = B.ptr_to([0])\n«p[1]» = {}",
    "attribute": "o = type('O', (), {{}})()\no.x = T.local_scalar('int32')\n«o.x» = {}",
    "in a list": "l = [T.local_scalar('int32')]\n«l[0]» = {}",
    "in memory": "«T.cuda.atomic_add(B.ptr_to([0]), {})»",
}


@pytest.mark.parametrize("value", ["0.5", "2.0", "A[0, 0]", "T.float32(1)", "n / 2", "T.exp(n)"])
@pytest.mark.parametrize("place", INTEGER_PLACES)
def test_a_float_does_not_become_an_integer_unasked(place: str, value: str) -> None:
    error = refused(INTEGER_PLACES[place].format(value), "type-mismatch")
    assert 'T.cast(…, "int32")' in (error.hint or "")
    assert error.expected == "int32"


@pytest.mark.parametrize("value", ["2**31", "2**32 - 1", "-2**31 - 1", "2**70"])
@pytest.mark.parametrize("place", INTEGER_PLACES)
def test_an_integer_place_holds_every_literal_that_is_put_there(place: str, value: str) -> None:
    error = refused(INTEGER_PLACES[place].format(value), "type-mismatch")
    assert error.expected == "-2147483648 … 2147483647"


@pytest.mark.parametrize("text", ["«x += 0.5»", "«x /= 2»", "«x -= A[0, 0]»"])
def test_what_is_added_to_an_integer_is_one(text: str) -> None:
    refused("x: T.int32 = n\n" + text, "type-mismatch")


def test_a_program_may_ask_for_what_is_not_done_unasked() -> None:
    body = "x: T.int32 = T.cast(A[0, 0], 'int32')\nx = T.int32(0xFFFFFFFF)\nx = T.uint32(7)"
    assert printed(body) == [
        'x: T.int32 = T.cast(A[0, 0], "int32")',
        "x = -1",
        "x = 7",
    ]


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint32", "uint64"])
def test_bounds_of_other_integers(kind: str) -> None:
    bits = int(kind.removeprefix("uint").removeprefix("int"))
    low, high = (0, 2**bits) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    printed(f"x: T.{kind} = {low}\nx = {high - 1}")
    refused(f"«x»: T.{kind} = {high}", "type-mismatch")
    refused(f"«x»: T.{kind} = {low - 1}", "type-mismatch")


# The largest literal of a type, and the smallest that rounds to something beyond it.
LARGEST = {
    "float16": ("65519.0", "65520.0"),
    "bfloat16": ("3.39e38", "3.4e38"),
    "float32": ("3.4028235e38", "1e300"),
    "float8_e4m3fn": ("464.0", "470.0"),
    "float8_e5m2": ("61439.0", "61440.0"),
    "float4_e2m1fn": ("6.9", "7.5"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("kind", LARGEST)
def test_a_float_holds_every_literal_that_is_put_there(kind: str, sign: str) -> None:
    fits, overflows = LARGEST[kind]
    read(f"x: T.{kind} = {sign}{fits}")
    for text in ("«x»: T.{} = {}", "x: T.{} = 0\n«x» = {}", "v: T.{}[2]\n«v[0]» = {}"):
        refused(text.format(kind, sign + overflows), "type-mismatch")
        if float(overflows) > 100:
            refused(text.format(kind, f"int({sign}{overflows})"), "type-mismatch")
    read(f"x: T.{kind} = T.{kind}({sign}{overflows})")


@pytest.mark.filterwarnings("error")
def test_a_literal_beside_an_operand_is_one_of_its_type() -> None:
    params = "A: T.Tensor((4,), 'float16'), O: T.Tensor((4,), 'float32')"
    for text in ("O[0] = «A[0] * 70000.0»", "O[0] = «T.max(O[1], 1e39)»", "O[0] = «T.exp(1e39)»"):
        before, rest = text.split("«")
        with pytest.raises(FrontendError) as caught:
            read(before + rest.replace("»", ""), params)
        assert caught.value.code == "type-mismatch"
    read("x: T.float32 = float('inf')\nx = float('nan')\nx = T.infinity('float32')", params)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("A[0, 0]", "float32"),
        ("n + 1", "int32"),
        ("T.int64(n)", "int64"),
        ("n > 1", "bool"),
        ("T.cast(n, 'float16')", "float16"),
        ("1", "int32"),
        ("1.5", "float32"),
        ("True", "bool"),
    ],
)
def test_the_advice_names_the_type_of_the_value(value: str, kind: str) -> None:
    for text in (
        f"if n > 1:\n    x = {value}\nB[0] = T.int32(«x»)",
        f"for i in range(4):\n    x = {value}\nB[0] = T.int32(«x»)",
        f"x = {value}\nfor i in range(4):\n    B[i] = T.int32(«x»)\n    x = {value}",
    ):
        assert f"`x: T.{kind} = …`" in (refused(text, "unbound-name").hint or "")


def test_the_advice_for_what_no_cell_holds() -> None:
    error = refused("if n > 1:\n    t = A.sub[0]\nA[0, 0] = «t»[0]", "unbound-name")
    assert "before the branch" in (error.hint or "")


def test_a_pointer_is_held_in_a_cell() -> None:
    body = """
    p: T.Ptr("int32") = B.ptr_to([n])
    if n > 3:
        p = p + 1
    q: T.Ptr("int32", align=4)
    q = B.ptr_to([0], align=16)
    p[0] = q[1]
    """
    assert printed(body) == [
        'p: T.Ptr("int32", space="global", align=4) = B.ptr_to([n])',
        "if n > 3:",
        '    p = T.offset(p, 4, "int32", 4)',
        'q: T.Ptr("int32", space="global", align=4)',
        'q = T.offset(B.ptr_to([0], align=16), 0, "int32", 4)',
        'T.write(p, T.read(T.offset(q, 4, "int32", 4)))',
    ]


@pytest.mark.parametrize(
    "text",
    [
        '«p»: T.Ptr("float32") = B.ptr_to([0])',
        '«p»: T.Ptr("int32", space="shared") = B.ptr_to([0])',
        '«p»: T.Ptr("int32", align=16) = B.ptr_to([0])',
        '«p»: T.Ptr("int32") = n',
        'p: T.Ptr("int32")\n«p» = A.ptr_to([0, 0])',
        'p: T.Ptr("int32")\n«p» = 3',
        "x: T.int32 = 0\n«x» = B.ptr_to([0])",
    ],
)
def test_a_cell_holds_a_pointer_of_its_type(text: str) -> None:
    refused(text, "type-mismatch")


@pytest.mark.parametrize(
    "nothing",
    [
        "None",
        "T.breakpoint()",
        "T.cuda.cta_sync()",
        'T.cuda.printf("%d", n)',
        "T.ptx.bar.sync(0)",
        "None if True else 1",
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        "x: T.float32 = «{}»",
        "x: T.bool = «{}»",
        'x: "T.int32" = «{}»',
        'x: T.ptr("float32") = «{}»',
        "«A[0, 0]» = {}",
        "x: T.float32 = 0\n«x» = {}",
        "«x»: T.let = {}",
        "«x»: T.let[T.float32] = {}",
    ],
)
def test_what_has_no_value_is_none(place: str, nothing: str) -> None:
    assert refused(place.format(nothing), "type-mismatch").found

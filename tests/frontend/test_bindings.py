"""Names: what binds, what declares, what assigns, and what is not bound on every way."""

from __future__ import annotations

from reading import printed, refused


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
    body = "x: T.int32 = n\nx += 1\nx = A[0, 0]\ny: T.float32\ny = x"
    assert printed(body) == [
        "x: T.int32 = n",
        "x = x + 1",
        'x = T.cast(A[0, 0], "int32")',
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

"""`T.ptx` and tile operations: spellings, operands, and what does not fit."""

from __future__ import annotations

import pytest
from reading import body_of, printed, read, refused

from tilewright.ir.expressions import Constant, Load, Var
from tilewright.ir.statements import Apply, Instruct
from tilewright.isa.declaration import families
from tilewright.isa.mnemonics import WORDS

BUFFERS = """
s = T.alloc_shared((8,), "float32")
bar = T.alloc_shared((1,), "uint64")
r = T.alloc_local((4,), "uint32")
x: T.float32 = 0
"""


def last(text: str) -> str:
    """Print what the last line of a body became."""
    return printed(BUFFERS + text)[-1]


@pytest.mark.parametrize(
    "call",
    [
        "T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 3)",
        "T.ptx.mbarrier.init.b64.shared(bar.ptr_to([0]), T.uint32(3))",
        'T.ptx["mbarrier.init.shared.b64"](T.address_of(bar), 3)',
        'T.ptx["mbarrier.init"].shared.b64(bar.data, 3)',
    ],
)
def test_spellings_of_one_instruction(call: str) -> None:
    assert last(call) == 'T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(3))'


def test_attribute_spellings_of_awkward_tokens() -> None:
    assert (
        last("T.ptx.fence.proxy.async_.shared__cta()") == 'T.ptx["fence.proxy.async.shared::cta"]()'
    )
    body = "T.ptx.ld.global_.b32(r[0], A.ptr_to([0, 1]))"
    assert last(body) == 'T.ptx["ld.global.b32"](r[0], A.ptr_to([0, 1]))'


def test_instructions_are_values() -> None:
    body = "load = T.ptx.ld.shared\nload.f32(x, s.ptr_to([n]))"
    assert last(body) == 'T.ptx["ld.shared.f32"](x, s.ptr_to([n]))'


def test_outputs_are_places() -> None:
    call = body_of(read(BUFFERS + "T.ptx.ld.shared.v2.b32(x, r[n], s.ptr_to([0]))"))[-1]
    assert isinstance(call, Instruct)
    first, second, _ = call.operands
    assert isinstance(first, Var) and isinstance(second, Load)


def test_results_go_to_memory_through_a_cell() -> None:
    body = BUFFERS + "T.ptx.ld.shared.f32(A[0, n], s.ptr_to([0]), pred=x > 1)"
    assert printed(body)[-5:] == [
        "predicate = x > T.float32(1.0)",
        "result: T.float32",
        'T.ptx["ld.shared.f32"](result, s.ptr_to([0]), pred=predicate)',
        "if predicate:",
        "    A[0, n] = result",
    ]


def test_a_sink_takes_what_nobody_wants() -> None:
    assert printed("T.ptx.ld.global_.s32(T.ptx.SINK, B.ptr_to([0]))") == [
        "result: T.int32",
        'T.ptx["ld.global.s32"](result, B.ptr_to([0]))',
    ]


def test_predication() -> None:
    body = "T.ptx.ld.shared.f32(x, s.ptr_to([0]), pred=n, preserve_dst=True)"
    assert last(body) == 'T.ptx["ld.shared.f32"](x, s.ptr_to([0]), pred=n != 0, preserve_dst=True)'


def test_addresses_may_be_moved_and_may_be_numbers() -> None:
    assert last("T.ptx.ld.shared.f32(x, T.ptx.addr(s.ptr_to([0]), 8))") == (
        'T.ptx["ld.shared.f32"](x, T.offset(s.ptr_to([0]), 8, "float32", 4))'
    )
    body = "a = T.cuda.cvta_generic_to_shared(s.ptr_to([0]))\nT.ptx.ld.shared.f32(x, a + 4)"
    assert last(body) == 'T.ptx["ld.shared.f32"](x, a + T.uint32(4))'


def test_literals_take_the_type_of_the_operand() -> None:
    call = body_of(read(BUFFERS + "T.ptx.st.shared.f32(s.ptr_to([0]), 1)"))[-1]
    assert isinstance(call, Instruct)
    value = call.operands[1]
    assert isinstance(value, Constant) and value.dtype.name == "float32"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("T.ptx.mbarrier.init.«shred».b64(bar.ptr_to([0]), 1)", "unknown-modifier"),
        ('«T.ptx["mbarrier.init.shred.b64"]»(bar.ptr_to([0]), 1)', "unknown-modifier"),
        ("T.ptx.«mbarier».init(1)", "unknown-name"),
        ("«T.ptx.ld.shared(x, s.ptr_to([0]))»", "incomplete-instruction"),
        ("«T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]))»", "operand-count"),
        ("T.ptx.mbarrier.init.shared.b64(«bar», 1)", "operand-type"),
        ("T.ptx.mbarrier.init.shared.b64(«A.ptr_to([0, 0])», 1)", "operand-type"),
        ("T.ptx.mbarrier.init.shared.b64(«x», 1)", "operand-type"),
        ("T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), «n»)", "operand-type"),
        ("T.ptx.ld.shared.f32(«n», s.ptr_to([0]))", "operand-type"),
        ("T.ptx.ld.shared.f32(«x + 1», s.ptr_to([0]))", "operand-type"),
        ("T.ptx.ld.shared.f32(«r[0]», s.ptr_to([0]))", "operand-type"),
        ("T.ptx.ld.shared.f32(«s», s.ptr_to([0]))", "operand-type"),
        ("T.ptx.st.shared.f32(s.ptr_to([0]), «'one'»)", "operand-type"),
        ("«T.ptx.ld.shared.f32(x, s.ptr_to([0]), prd=1)»", "bad-call"),
    ],
)
def test_instructions_that_do_not_fit(call: str, code: str) -> None:
    refused(BUFFERS + call, code)


def test_errors_of_instructions_say_what_is_legal() -> None:
    error = refused(
        BUFFERS + "T.ptx.mbarrier.init.«shred».b64(bar.ptr_to([0]), 1)", "unknown-modifier"
    )
    assert ".shared" in (error.expected or "")
    error = refused(BUFFERS + "«T.ptx.ld.shared.v2.b32(x, s.ptr_to([0]))»", "operand-count")
    assert error.expected == "3 (d0, d1, a)"
    error = refused(BUFFERS + "T.ptx.st.shared.f32(s.ptr_to([0]), «n»)", "operand-type")
    assert error.expected == "float32, because of .f32"
    assert error.found == "int32"


def test_a_tile_operation() -> None:
    body = (
        BUFFERS
        + 'T.cuda.tile.apply(T.ptx.ld.shared.v4.b32, r, s.sub[0:4].view("uint32"), scope="thread")'
    )
    apply = body_of(read(body))[-1]
    assert isinstance(apply, Apply)
    assert (apply.form.text, apply.scope, len(apply.operands)) == ("ld.shared.v4.b32", "thread", 2)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ('T.cuda.tile.apply("ld.shared.b32", r, s, scope=«"block"»)', "tile-scope"),
        ('T.cuda.tile.apply(«"bar.sync"», r, s)', "tile-unsupported"),
        ('T.cuda.tile.apply(«"ld.shred.b32"», r, s)', "unknown-modifier"),
        ("T.cuda.tile.apply(«n», r, s)", "bad-call"),
        ('«T.cuda.tile.apply("ld.shared.b32", r)»', "operand-count"),
    ],
)
def test_tile_operations_that_do_not_fit(call: str, code: str) -> None:
    refused(BUFFERS + call, code)


@pytest.mark.parametrize(
    "text",
    [
        *("T.ptx.«wgmma».fence.sync.aligned()", "T.ptx.«trap»()", "T.ptx.«match_any_sync»"),
        *("T.ptx.«prefetchu»", "T.ptx.«brkpt»()", "T.ptx.«mapa»", "T.ptx.«bfe».u32"),
        *("«T.ptx['wgmma.fence.sync.aligned']»()", "«T.ptx['match.any.sync.b32']»"),
    ],
)
def test_an_instruction_of_ptx_that_is_not_here_is_not_called_unknown(text: str) -> None:
    error = refused(text, "not-supported")
    assert "not supported yet" in error.message


@pytest.mark.parametrize("word", sorted(set(families()) - {"bar.warp.sync"}))
def test_every_instruction_is_one_of_ptx(word: str) -> None:
    assert word.split(".")[0] in WORDS


@pytest.mark.parametrize(
    ("text", "close"),
    [
        ("T.ptx.«ldmatrx»", "ldmatrix"),
        ("«T.ptx['ldmatrx.sync']»", "ldmatrix"),
        ("T.ptx.«mbarier».init", "mbarrier"),
        ("T.ptx.«wgmm».fence", "wgmma"),
    ],
)
def test_a_misspelt_instruction_gets_a_suggestion(text: str, close: str) -> None:
    assert refused(text, "unknown-name").hint == f"did you mean {close}?"


def test_a_misspelt_modifier_gets_a_suggestion() -> None:
    error = refused("T.ptx.ldmatrix.sync.«alligned»", "unknown-modifier")
    assert error.hint == "did you mean .aligned?"


@pytest.mark.parametrize("text", ["3", "None", "T.ptx", "('bar.sync',)"])
def test_an_instruction_is_text(text: str) -> None:
    refused(f"«T.ptx[{text}]»", "bad-call")


@pytest.mark.parametrize("group", ["[r[0], r[1]]", "(r[0], r[1])"])
def test_a_list_is_no_group_of_registers(group: str) -> None:
    body = "r: T.uint32[2]\ns = T.alloc_shared((64,), 'float16')\n"
    error = refused(
        f"{body}«T.ptx.ldmatrix.sync.aligned.m8n8.x2.shared.b16({group}, s.ptr_to([0]))»",
        "operand-count",
    )
    assert "*registers" in (error.hint or "")
    error = refused(
        f"{body}T.ptx.ldmatrix.sync.aligned.m8n8.x1.shared.b16(«[r[0]]», s.ptr_to([0]))",
        "operand-type",
    )
    assert "*registers" in (error.hint or "")
    printed(f"{body}T.ptx.ldmatrix.sync.aligned.m8n8.x2.shared.b16(*{group}, s.ptr_to([0]))")


MBARRIER = "b = T.alloc_shared((1,), 'uint64')\n"


@pytest.mark.parametrize(
    "text",
    [
        "T.ptx.bar.sync(«16»)",
        "T.ptx.bar.sync(«17», 32)",
        "T.ptx.bar.sync(1, «33»)",
        "T.ptx.bar.sync(1, «0»)",
        "T.ptx.bar.sync(1, «2048»)",
        "T.ptx.barrier.sync.aligned(1, «T.uint32(16)»)",
        "T.ptx.bar.arrive(1, «31»)",
        "«T.cuda.warpgroup_sync(16)»",
        MBARRIER + "T.ptx.mbarrier.init.shared.b64(b.ptr_to([0]), «0»)",
        MBARRIER + "T.ptx.mbarrier.init.shared.b64(b.ptr_to([0]), «1 << 20»)",
        MBARRIER + "T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(b.ptr_to([0]), «1 << 20»)",
        MBARRIER + "«T.cuda.mbarrier_wait(b.ptr_to([0]), 2)»",
        "a = T.alloc_shared((1,), 'uint32')\n"
        "T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(a.ptr_to([0]), «33»)",
    ],
)
def test_a_constant_that_an_instruction_cannot_take_is_refused_at_once(text: str) -> None:
    refused(text, "operand-type")


def test_what_is_not_known_is_left_to_the_run() -> None:
    printed("T.ptx.bar.sync(T.uint32(n), T.uint32(n * 32))\nT.ptx.bar.sync(15, 1024)")


def test_what_is_spelled_has_no_items() -> None:
    error = refused("«T.ptx.mbarrier['init.shared.b64']»(B.data, 1)", "bad-call")
    assert error.hint == "T.ptx['mbarrier.init.shared.b64'](…)"
    refused("x = «T.ptx.mbarrier.init[0]»", "bad-call")


def test_a_tensor_map_has_no_elements() -> None:
    head = "@T.function\ndef k(amap: T.Ptr(T.TensorMap)):\n    "
    text = (
        f"{head}T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n    x = «amap[0]»\n"
    )
    refused(text, "bad-index", whole=True)

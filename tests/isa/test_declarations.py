"""The table of instructions: spelling, operands, order, targets, and one violation per rule."""

from __future__ import annotations

import random

import pytest

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.isa import named
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Order,
    Spelling,
    attribute_of_token,
    families,
    family_of_attribute,
    spell,
    token_of_attribute,
)

DECLARATIONS = [each for group in families().values() for each in group]


def name_of(declaration: Declaration) -> str:
    return f"{declaration.family}-{families()[declaration.family].index(declaration)}"


def only(text: str) -> Form:
    (form,) = spell(text).forms()
    return form


def some_forms(declaration: Declaration) -> list[Form]:
    forms = list(declaration.forms())
    return forms if len(forms) < 60 else random.Random(0).sample(forms, 60)


# ---------------------------------------------------------------------------- spelling


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=name_of)
def test_text_is_read_back(declaration: Declaration) -> None:
    for form in some_forms(declaration):
        assert form in spell(form.text).forms()


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=name_of)
def test_attributes_in_any_order_are_read_back(declaration: Declaration) -> None:
    shuffle = random.Random(1).shuffle
    for form in some_forms(declaration)[:10]:
        family = family_of_attribute(declaration.family.replace(".", "_"))
        assert family is not None and family == declaration.family
        tokens = [p if isinstance(p, str) else form[p.name] for p in declaration.parts]
        tokens = [each for each in tokens if each]
        # Tokens that several parts take keep their order among one another.
        if len(set(tokens)) == len(tokens) and declaration.family not in ("cvt", "mma"):
            shuffle(tokens)
        spelling = Spelling(family)
        for token in tokens:
            attribute = attribute_of_token(token)
            # A token that begins with a digit can only be written in brackets.
            assert attribute.isidentifier() or token[0].isdigit()
            assert token_of_attribute(attribute) == token
            spelling = spelling.extend(token)
        assert form in spelling.forms()


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=name_of)
def test_declarations_are_whole(declaration: Declaration) -> None:
    assert declaration.summary.endswith(".")
    assert declaration.section.startswith("9.7.")
    assert declaration.compute is not None
    form = some_forms(declaration)[0]
    names = [operand.name for operand in form.operands]
    assert len(set(names)) == len(names)
    for operand in form.operands:
        assert operand.dtype.bits
        assert (operand.kind == "address") == (operand.space is not None)
    # What touches registers later is carried out, as a whole, at the wait.
    late = form.time.completes in ("tmem_load", "tmem_store")
    assert (form.time.agent != "" and not late) == (declaration.lands is not None)


def test_an_unknown_modifier_lists_what_is_open() -> None:
    with pytest.raises(FrontendError) as caught:
        spell("ldmatrix.sync.aligned.m8n8.x3")
    assert caught.value.code == "unknown-modifier"
    assert ".x1, .x2, .x4" in str(caught.value)


def test_an_incomplete_instruction_lists_what_is_missing() -> None:
    with pytest.raises(FrontendError) as caught:
        spell("ldmatrix.sync.aligned.m8n8.x4").forms()
    assert caught.value.code == "incomplete-instruction"
    assert ".shared|.shared::cta .b16" in str(caught.value)


def test_families_of_several_words() -> None:
    assert family_of_attribute("shfl_sync") == "shfl.sync"
    assert family_of_attribute("and_") == "and"
    assert family_of_attribute("nothing") is None


# ---------------------------------------------------------------------------- operands

# text: the operands as "name:kind type", outputs marked by "=", groups by their count.
OPERANDS = {
    "ld.shared.v4.b32": "=d:b32x4 a:shared16",
    "st.global.b64": "a:global8 b:b64",
    "ld.acquire.gpu.global.u32": "=d:u32 a:global4",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "=d:b32x4 p:shared16",
    "stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16": "p:shared16 r:b32x2",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "=d:f32x4 a:b32x4 b:b32x2 c:f32x4",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32": "=d:f32x4 a:b32x2 b:b32 c:f32x4",
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16": "=d:b32x2 a:b32x4 b:b32x2 c:b32x2",
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32": "=d:s32x4 a:b32x2 b:b32 c:s32x4",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": "=d:f64x2 a:f64 b:f64 c:f64x2",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32": "dst:shared4 nCols:u32",
    "tcgen05.ld.sync.aligned.16x256b.x2.b32": "=r:b32x8 taddr:tmem64",
    "tcgen05.ld.sync.aligned.16x32bx2.x4.b32": "=r:b32x4 taddr:tmem16 immHalfSplitoff:u32",
    "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32": "taddr:tmem16 r:b32x2",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64": "mbar:shared8",
    "bar.sync": "a:u32 b:u32?",
    "barrier.cta.red.popc.aligned.u32": "=d:u32 a:u32 b:u32? c:pred",
    "bar.warp.sync": "membermask:b32",
    "mbarrier.init.shared.b64": "addr:shared8 count:u32",
    "mbarrier.try_wait.parity.shared::cta.b64": (
        "=waitComplete:pred addr:shared8 phaseParity:u32 suspendTimeHint:u32?"
    ),
    "atom.global.cas.b32": "=d:b32 a:global4 b:b32 c:b32",
    "red.shared.add.u32": "a:shared4 b:u32",
    "red.global.add.v4.f32": "a:global16 b:f32x4",
    "red.shared.add.noftz.bf16x2": "a:shared4 b:b32",
    "red.global.add.noftz.v2.f16x2": "a:global8 b:b32x2",
    "redux.sync.add.s32": "=dst:s32 src:s32 membermask:b32",
    "vote.sync.ballot.b32": "=d:b32 a:pred membermask:b32",
    "fma.rn.f16x2": "=d:b32 a:b32 b:b32 c:b32",
    "mul.wide.u16": "=d:u32 a:u16 b:u16",
    "cvt.rn.f16x2.f32": "=d:b32 a:f32 b:f32",
}


def described(form: Form) -> str:
    words: list[str] = []
    for each in form.operands:
        kind = f"{each.space.value}{each.bytes}" if each.space else each.type
        many = f"x{each.count}" if each.count > 1 else ""
        out = "=" if each.role == "out" else ""
        words.append(f"{out}{each.name}:{kind}{many}{'?' if each.optional else ''}")
    return " ".join(words)


@pytest.mark.parametrize("text", OPERANDS)
def test_operands(text: str) -> None:
    assert described(only(text)) == OPERANDS[text]


def test_overloads_differ_in_operands() -> None:
    for text, counts in (
        ("mbarrier.arrive.shared::cta.b64", [1, 2, 2, 3]),
        ("shfl.sync.idx.b32", [5, 6]),
        ("elect.sync", [2, 3]),
        ("mov.b32", [2, 3, 3]),
        ("tcgen05.mma.cta_group::1.kind::f16", [5, 5, 6, 6, 9, 9, 10, 10]),
    ):
        forms = spell(text).forms()
        found = sorted(sum(each.count for each in form.operands) for form in forms)
        assert found == counts


# ---------------------------------------------------------------------------- legality

# One violation of each rule: the text, and a part of what is said.
VIOLATIONS = {
    "ld.gpu.global.b32": "needs an ordering",
    "ld.acquire.global.b32": "needs a scope",
    "ld.global.v8.b64": "elements of 32 bits",
    "ld.shared.v4.b64": "needs .global",
    "ld.global.cg.L1::no_allocate.b32": "exclude each other",
    "ld.relaxed.gpu.global.cg.b32": "needs a weak access",
    "ld.shared.L1::no_allocate.b32": "needs .global",
    "ld.global.ca.nc.L1::evict_last.b32": "exclude each other",
    "st.release.global.b32": "needs a scope",
    "st.shared.v8.b32": "needs .global",
    "atom.global.add.b32": ".add does not take .b32",
    "red.global.and.u32": ".and does not take .u32",
    "red.shared.add.noftz.v2.f16": ".v2 needs .global",
    "mbarrier.arrive.release.shared.b64": "written together",
    "mbarrier.try_wait.parity.cta.shared.b64": "written together",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32": "must agree",
    "bar.red.popc.pred": "gives a .u32",
    "bar.red.and.u32": "gives a .pred",
    "redux.sync.add.b32": ".add does not take .b32",
    "mul.wide.u64": "at most 32 bits",
    "setp.lo.f32": "compares unsigned integers",
    "setp.lo.s32": "compares unsigned integers",
    "setp.ltu.u32": "compares floating numbers",
    "setp.lt.b32": "only .eq and .ne",
    "cvt.f16.f32": "needs .rn",
    "cvt.rn.s32.f32": "needs .rzi",
    "cvt.rn.f32.f16": "needs no rounding",
    "cvt.u32.u32": "changes the type",
    "cvt.f16.bf16": "no conversion",
    "cvt.rn.bf16.f64": "from and to .f32 only",
    "tcgen05.ld.sync.aligned.16x256b.x64.b32": "at most .x32",
    "tcgen05.st.sync.aligned.16x128b.x128.b32": "at most .x64",
}


@pytest.mark.parametrize("text", VIOLATIONS)
def test_violations(text: str) -> None:
    with pytest.raises(FrontendError, match=VIOLATIONS[text]) as caught:
        spell(text).forms()
    assert caught.value.code == "unknown-modifier"


# ---------------------------------------------------------------------------- order, time, targets


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("ld.global.b32", Order()),
        ("ld.volatile.global.b32", Order(scope="sys")),
        ("ld.acquire.gpu.global.b32", Order(acquires=True, scope="gpu")),
        ("st.release.cta.shared.b32", Order(releases=True, scope="cta")),
        ("atom.acq_rel.sys.global.add.u32", Order(acquires=True, releases=True, scope="sys")),
        ("atom.global.add.u32", Order(scope="gpu")),
        ("bar.sync", Order(acquires=True, releases=True, scope="cta")),
        ("bar.arrive", Order(releases=True, scope="cta")),
        ("mbarrier.try_wait.parity.shared.b64", Order(acquires=True, scope="cta")),
        (
            "mbarrier.try_wait.parity.relaxed.cluster.shared.b64",
            Order(scope="cluster"),
        ),
        ("fence.acq_rel.gpu", Order("none", True, True, "gpu", "memory")),
        (
            "fence.proxy.async.shared::cta",
            Order("async", fence="proxy", spaces=(Space.SHARED,)),
        ),
        ("fence.proxy.async", Order("async", fence="proxy")),
        (
            "fence.mbarrier_init.release.cluster",
            Order("none", releases=True, scope="cluster", fence="mbarrier_init"),
        ),
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes",
            Order(proxy="async"),
        ),
    ],
)
def test_order(text: str, order: Order) -> None:
    assert only(text).order == order


def test_bulk_copies_are_asynchronous() -> None:
    time = only("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes").time
    assert (time.agent, time.completes) == ("bulk_copy", "mbarrier")
    assert only("ld.global.b32").time.agent == ""


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "sm_75"),
        ("stmatrix.sync.aligned.m8n8.x4.shared.b16", "sm_90"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "sm_75"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "sm_80"),
        ("ld.global.v8.f32", "sm_100"),
        ("ld.global.v4.f32", "sm_75"),
        ("ld.relaxed.cluster.global.b32", "sm_90"),
        ("redux.sync.add.u32", "sm_80"),
        ("mbarrier.test_wait.shared.b64", "sm_80"),
        ("mbarrier.try_wait.shared.b64", "sm_90"),
        ("fence.proxy.async", "sm_90"),
        ("fma.rn.bf16", "sm_80"),
        ("red.global.add.noftz.f16x2", "sm_75"),
        ("red.global.add.noftz.bf16", "sm_90"),
        ("red.global.add.v2.f32", "sm_90"),
        ("add.rn.f32x2", "sm_100"),
    ],
)
def test_targets(text: str, since: str) -> None:
    order = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
    (targets,) = {form.targets for form in spell(text).forms()}
    for arch in order:
        assert (target(arch) in targets) == (order.index(arch) >= order.index(since))


# ---------------------------------------------------------------------------- names


def test_named_forms_are_forms_of_the_table() -> None:
    forms = [value for value in vars(named).values() if isinstance(value, Form)]
    assert len(forms) > 30
    for form in forms:
        assert form in spell(form.text).forms()


def test_named_atomics() -> None:
    assert named.atomic_add("global", "f32").text == "atom.global.add.f32"
    assert named.atomic_cas("shared", "b32").text == "atom.shared.cas.b32"

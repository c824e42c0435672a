"""`T.cuda.tcgen05`: descriptors that a program makes itself, against recorded words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.base.errors import FrontendError
from tilewright.frontend import parse, parse_function
from tilewright.layout import mma_shared_layout

DATA = Path(__file__).parents[1] / "data" / "descriptor_vectors.json"
VECTORS: list[dict[str, Any]] = json.loads(DATA.read_text())
DENSE = [each for each in VECTORS if each["fn"] == "dense"]
MATRICES = [each for each in VECTORS if each["fn"] == "smem_base"]
HEAD = """
from tilewright import simt as T

@T.function
def k(Out: T.Tensor((256,), "{}"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    desc: T.{}
    a = T.alloc_shared((8, 64), "float16", layout="default", align=1024)
    r = T.alloc_local((4,), "{}", layout="default")
    s = T.alloc_shared((4,), "{}", layout="default")
    v = T.shared_scalar("{}")
"""


def run(body: str, kind: str = "uint32") -> list[int]:
    """Run a program with this body, and give what it leaves in `Out`."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    made = parse_function(HEAD.replace("{}", kind) + lines)
    assert parse(made.script()) == made.program, made.script()
    out = np.zeros(256, kind)
    tilewright.compile(made, target="sm_100a")(out, 3)
    return out.tolist()


def refused(body: str, kind: str = "uint32") -> FrontendError:
    with pytest.raises(FrontendError) as caught:
        run(body, kind)
    assert caught.value.location is not None and "encode_" in caught.value.location.excerpt()
    return caught.value


def instruction(args: dict[str, Any], target: str = "desc") -> str:
    """Spell the call of a recorded descriptor."""
    names = {"cta_group": "n_cta_groups"}
    listed = ", ".join(f"{names.get(name, name)}={value!r}" for name, value in args.items())
    return f"T.cuda.tcgen05.encode_instr_descriptor(T.address_of({target}), {listed})"


def test_every_recorded_descriptor_of_a_product() -> None:
    good = [each for each in DENSE if not isinstance(each["value"], str)]
    body = "\n".join(
        f"{instruction(each['args'])}\nOut[{index}] = desc" for index, each in enumerate(good)
    )
    assert run(body)[: len(good)] == [each["value"] for each in good]


@pytest.mark.parametrize("record", [each for each in DENSE if isinstance(each["value"], str)])
def test_what_no_product_has_is_refused(record: dict[str, Any]) -> None:
    error = refused(instruction(record["args"]))
    assert error.code == "bad-call"
    assert ("K-major" in error.message) == ("transpose" in record["value"])


GOOD = '"float32", "float16", "float16", 128, 64, 16, False, False'


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (GOOD.replace("128", "n"), "not-constant", "M is a constant"),
        (GOOD + ", neg_a=n == 0", "not-constant", "neg_a is a constant"),
        (GOOD.replace('"float16", 128', '"bfloat17", 128'), "bad-call", "'bfloat17'"),
        (GOOD.replace('"float16", 128', '"int8", 128'), "bad-call", "float16 by int8"),
        (GOOD.replace("float32", "float64"), "bad-call", "into float64"),
        (GOOD + ", 3", "bad-call", "3 CTAs"),
    ],
)
def test_a_product_is_described_by_constants_that_fit(arguments: str, code: str, says: str) -> None:
    text = f"T.cuda.tcgen05.encode_instr_descriptor(T.address_of(desc), {arguments})"
    error = refused(text)
    assert error.code == code and says in error.message


def test_bits_of_a_product() -> None:
    text = f"T.cuda.tcgen05.encode_instr_descriptor(T.address_of(desc), {GOOD}, "
    body = "\n".join(
        f"{text}{more})\nOut[{index}] = desc"
        for index, more in enumerate(
            ("1", "neg_a=True", "neg_b=1", "is_sparse=True", "n_cta_groups=T.int32(1)")
        )
    )
    plain = 135266320
    assert run(body)[:5] == [plain, plain | 1 << 13, plain | 1 << 14, plain | 1 << 2, plain]
    body = text.replace("float16", "tf32").replace("16,", "8,") + ")\nOut[0] = desc\n"
    body += text.replace('"float16"', "T.float32").replace("16,", "8,") + ")\nOut[1] = desc"
    first, second = run(body)[:2]
    assert first == second == plain | 2 << 7 | 2 << 10


@pytest.mark.parametrize("target", ["desc", "r[2]", "s[n]", "v", "Out[7]"])
def test_a_descriptor_is_written_where_the_pointer_leads(target: str) -> None:
    text = f"T.cuda.tcgen05.encode_instr_descriptor(T.address_of({target}), {GOOD})"
    value = "Out[7]" if target == "Out[7]" else target
    assert run(f"{text}\nOut[0] = {value}")[0] == 135266320


@pytest.mark.parametrize("target", ["desc", "T.address_of(a[0, 0])", "n", "T.address_of(s)"])
def test_a_descriptor_needs_a_place_of_its_width(target: str) -> None:
    kind = "uint64" if "s)" in target else "uint32"
    text = f"T.cuda.tcgen05.encode_instr_descriptor({target}, {GOOD})"
    assert refused(text, kind).code == "operand-type"


def test_every_recorded_descriptor_of_a_matrix() -> None:
    body = ""
    for index, each in enumerate(MATRICES):
        args = each["args"]
        numbers = f"{args['ldo']}, sdo={args['sdo']}, swizzle={args['swizzle']}"
        body += (
            "T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), a.ptr_to([0, 0]), "
            f"{numbers})\nOut[{index}] = desc\n"
        )
    body += "Out[100] = T.cast(T.cuda.cvta_generic_to_shared(a.ptr_to([0, 0])), 'uint64')"
    found = run(body, "uint64")
    base = found[100] >> 4
    assert base > 0
    assert found[: len(MATRICES)] == [each["value"] | base for each in MATRICES]


def test_offsets_may_be_known_later() -> None:
    text = "T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), T.uint32(64), n, n * 2, 2)"
    assert run(f"{text}\nOut[0] = desc", "uint64")[0] == 4 | 3 << 16 | 6 << 32 | 1 << 46 | 4 << 61


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("a.ptr_to([0, 0]), 1, 64, 5", "bad-call"),
        ("a.ptr_to([0, 0]), 1, 64, n", "not-constant"),
        ("Out.ptr_to([0]), 1, 64, 3", "operand-type"),
        ("1.5, 1, 64, 3", "operand-type"),
    ],
)
def test_a_matrix_lies_in_shared_memory(arguments: str, code: str) -> None:
    text = f"T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), {arguments})"
    assert refused(text, "uint64").code == code


@pytest.mark.parametrize(
    "arguments",
    [
        "T.uint32(1 << 18), 1, 64, 3",
        "T.uint32(1032), 1, 64, 3",
        "T.uint32(0), «16384», 64, 3",
        "T.uint32(0), «-1», 64, 3",
        "T.uint32(0), 1, «16384», 3",
        "T.uint32(0), 1, sdo=«1 << 20», swizzle=3",
        "T.uint32(0), ldo=«-16», sdo=1, swizzle=3",
    ],
)
def test_constants_fit_the_fields_of_a_matrix_descriptor(arguments: str) -> None:
    """PTX ISA, "Shared memory descriptor": 14 bits each, of units of 16 bytes."""
    plain = arguments.replace("«", "").replace("»", "")
    text = f"T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), {plain})"
    error = refused(text, "uint64")
    assert error.code == "bad-call"
    assert error.location is not None
    wrong = arguments.split("«")[1].split("»")[0] if "«" in arguments else plain.split(", ")[0]
    place = error.location
    assert place.source_line()[place.column : place.end_column] == wrong


@pytest.mark.parametrize("offset", [0, 16383])
def test_the_largest_constants_do_fit(offset: int) -> None:
    text = f"T.uint32((1 << 18) - 16), {offset}, {offset}, 3"
    call = f"T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), {text})"
    word = 0x3FFF | offset << 16 | offset << 32 | 1 << 46 | 2 << 61
    assert run(f"{call}\nOut[0] = desc", "uint64")[0] == word


def test_the_address_of_a_cell_is_no_address() -> None:
    with pytest.raises(FrontendError) as caught:
        run("T.ptx.ld.shared.b32(desc, T.address_of(desc))")
    assert caught.value.code == "operand-type"


LAYOUT = mma_shared_layout("float16", 3, (64, 64))


@T.function
def product(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    Out: T.Tensor((64, 64), "float32"),
):
    """Multiply 64 rows by descriptors that the issuing thread makes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    lane = T.cuda.lane_id()
    a = T.alloc_shared((64, 64), "float16", layout=LAYOUT, align=1024)
    b = T.alloc_shared((64, 64), "float16", layout=LAYOUT, align=1024)
    address = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(address), T.uint32(64)
        )
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
    if tid < 64:
        for j in range(64):
            a[tid, j] = A[tid, j]
            b[tid, j] = B[tid, j]
    T.ptx.fence.proxy.async_.shared__cta()
    T.cuda.cta_sync()
    if tid == 0:
        idesc = T.local_scalar("uint32")
        adesc = T.local_scalar("uint64")
        bdesc = T.local_scalar("uint64")
        T.cuda.tcgen05.encode_instr_descriptor(
            T.address_of(idesc),
            d_dtype="float32",
            a_dtype="float16",
            b_dtype="float16",
            M=64,
            N=64,
            K=16,
            trans_a=False,
            trans_b=False,
            n_cta_groups=1,
        )
        for k in range(4):
            T.cuda.tcgen05.encode_matrix_descriptor(
                T.address_of(adesc), a.ptr_to([0, 16 * k]), ldo=1, sdo=64, swizzle=3
            )
            T.cuda.tcgen05.encode_matrix_descriptor(
                T.address_of(bdesc), T.address_of(b[0, 16 * k]), ldo=1, sdo=64, swizzle=3
            )
            T.ptx["tcgen05.mma.cta_group::1.kind::f16"](
                address[0], adesc, bdesc, idesc, 0, 0, 0, 0, k > 0
            )
        T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
            done.ptr_to([0])
        )
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    sums = T.alloc_local((64,), "float32", layout="default")
    T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"](
        *[sums[j] for j in range(64)], T.cuda.get_tmem_addr(address[0], 32 * warp, 0)
    )
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    if lane < 16:
        for j in range(64):
            Out[16 * warp + lane, j] = sums[j]
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(64))


@pytest.mark.parametrize("schedule", ["late", "eager", "random:4"])
def test_a_product_by_descriptors_of_the_programs_own(schedule: str) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (64, 64)).astype(np.float16) for _ in range(2))
    out = np.zeros((64, 64), np.float32)
    tilewright.compile(product, target="sm_100a", schedule=schedule)(a, b, out)
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


def test_the_product_compiles_for_the_chip() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert tilewright.compile(product, target="sm_100a").cubin().startswith(b"\x7fELF")

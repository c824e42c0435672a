"""Forms of functions, parameters and entries."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import HEAD, body_of, printed, read, read_text, refused

import tilewright
from tilewright import simt as T
from tilewright.base.errors import FrontendError, LaunchError
from tilewright.base.spaces import Space
from tilewright.frontend import KernelFunction, parse, parse_function
from tilewright.ir.expressions import SpecialRegister
from tilewright.ir.statements import Bind, LaunchKernel
from tilewright.ir.types import PointerType, TensorType
from tilewright.ir.verify import verify

m = T.dynamic("m")


@T.function
def in_this_file(A: T.Tensor((m, 4), "float32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=n, block=(32, 2)))
    row = T.cuda.block_idx("x")
    A[row, 0] = 1


def test_a_function_in_a_file() -> None:
    assert isinstance(in_this_file, KernelFunction)
    assert in_this_file.name == "in_this_file"
    assert list(in_this_file.params) == ["A", "n"]
    (kernel,) = in_this_file.program.kernels
    assert [each.name for each in kernel.symbols] == ["m"]
    (bind, _) = kernel.body
    assert isinstance(bind, Bind) and bind.value == SpecialRegister("ctaid.x")
    assert bind.value.location is not None
    assert bind.value.location.file == __file__
    assert bind.value.location.source_line().strip() == 'row = T.cuda.block_idx("x")'
    assert parse(str(in_this_file)) == in_this_file.program


def test_a_function_inside_a_function() -> None:
    size = 8

    @T.function
    def inner(A: T.Tensor((size,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=size))
        A[size - 1] = 2.0 * size

    assert str(inner).splitlines()[-1].strip() == "A[7] = T.float32(16.0)"


def test_parameters_of_every_kind() -> None:
    made = read_text("""
    from __future__ import annotations
    from tilewright import simt as T
    q = T.Var("q", "int32")
    @T.function
    def k(n: T.int32, A: T.Tensor((n, q * 2, q), "bf16", align=128, layout=None),
          B: T.Tensor((4, 4), T.float32, layout="default"), p: T.Ptr(T.float16), h: T.handle,
          s: T.Ptr("float32", space="shared", align=16), x: "T.float64"):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=n, block=32))
        p[n] = x
        B[0, 0] = p[1]
    """)
    types = made.params
    assert isinstance(types["A"], TensorType) and types["A"].align == 128
    assert types["p"] == PointerType(Space.GLOBAL, T.float16.dtype, 2)
    assert types["s"] == PointerType(Space.SHARED, T.float32.dtype, 16)
    assert [each.name for each in made.program.kernels[0].symbols] == ["q"]


def test_regions_are_kernels_of_their_own() -> None:
    made = read_text("""
    @T.function
    def k(A: T.Tensor((64,), "float32"), n: T.int32):
        blocks = T.ceildiv(n, 64)
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=64)):
            A[T.cuda.thread_idx("x")] = 0
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64)):
            A[0] = blocks
    """)
    first, second = made.program.kernels
    assert (first.name, second.name) == ("k_kernel", "k_kernel_1")
    assert [each.name for each in second.params] == ["A", "n", "blocks"]
    assert [type(each) for each in made.program.host] == [Bind, LaunchKernel, LaunchKernel]


def test_the_host_keeps_its_names_between_kernels() -> None:
    read_text("""
    @T.function
    def k(A: T.Tensor((64,), "float32"), n: T.int32):
        blocks = T.ceildiv(n, 64)
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=64)):
            A[0] = blocks
        if blocks > 1:
            T.cuda.printf("%d\\n", blocks)
    """)


def test_launch_options_and_attributes() -> None:
    made = read_text("""
    config = T.cuda.LaunchConfig(grid=(4, 2), block=64)
    @T.function
    def k(A: T.Tensor((64,), "float32")):
        T.device_entry(
            launch=config.replace(cluster=2, dynamic_smem_bytes=1024, cooperative=True),
            kernel_attrs=T.cuda.KernelAttributes(min_blocks_per_sm=2))
        A[0] = 0
    """)
    (kernel,) = made.program.kernels
    assert kernel.launch.options == (("cooperative", True),)
    assert kernel.attributes == (("min_blocks_per_sm", 2),)
    assert [str(each) for each in kernel.launch.cluster] == ["2", "1", "1"]


def test_templates_are_specialised_once_for_the_same_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace: dict[str, Any] = {}
    text = (
        "from __future__ import annotations\nfrom tilewright import simt as T\n"
        + """
@T.jit
def fill(A: T.Tensor((SIZE,), "float32"), B: T.Tensor((4,), "int32") | None, *,
         SIZE: T.constexpr, VALUE: T.constexpr = 3):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=SIZE))
    A[T.cuda.thread_idx("x")] = VALUE
    if B is not None:
        B[0] = SIZE
"""
    )
    lines = text.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<template>", (len(text), None, lines, "<template>"))
    exec(compile(text, "<template>", "exec"), namespace)
    template = namespace["fill"]
    one = template.specialize(SIZE=64)
    assert one is template.specialize(SIZE=64, VALUE=3)
    assert one is not template.specialize(SIZE=64, VALUE=3.0)
    without = template.specialize(SIZE=32, B=None)
    assert list(one.params) == ["A", "B"] and list(without.params) == ["A"]
    assert len(body_of(one)) == 2 and len(body_of(without)) == 1
    with pytest.raises(FrontendError) as caught:
        template.specialize(VALUE=1)
    assert caught.value.code == "bad-call"


def test_helpers_are_expanded_with_their_branches() -> None:
    before = """
    @T.inline
    def clamp(x, low=0):
        y: T.int32 = x
        if y < low:
            y = low
        return y

    def double(x):
        return x * 2
    """
    body = """
    B[0] = clamp(n)
    B[1] = double(clamp(double(n), low=1))
    add = lambda a, b=1: a + b
    B[2] = add(n)
    def local(i):
        B[i] = n
    local(3)
    for f in (double, add):
        B[4] = f(n)
    """
    assert printed(body, before=before) == [
        "y: T.int32 = n",
        "if y < 0:",
        "    y = 0",
        "B[0] = y",
        "y_1: T.int32 = n * 2",
        "if y_1 < 1:",
        "    y_1 = 1",
        "x: T.let = y_1",
        "B[1] = x * 2",
        "B[2] = n + 1",
        "B[3] = n",
        "B[4] = n * 2",
        "B[4] = n + 1",
    ]


def test_an_error_in_a_helper_shows_the_call() -> None:
    with pytest.raises(FrontendError) as caught:
        parse_function(
            HEAD
            + """
@T.inline
def helper(t):
    return t[0, 0]

@T.function
def k(A: T.Tensor((4,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[1] = helper(A)
"""
        )
    error = caught.value
    assert error.location is not None and error.location.line == 6
    assert error.location.inlined_at is not None and error.location.inlined_at.line == 11
    assert "called from" in str(error)


def test_objects_that_hold_cells() -> None:
    before = """
    @T.meta_class
    class State:
        def __init__(self, depth):
            self.depth = depth
            self.stage = T.local_scalar("int32", 0)
            self.phase: T.int32 = 1
        def advance(self):
            self.stage += 1
            if self.stage == self.depth:
                self.stage = 0
                self.phase = self.phase ^ 1
    """
    body = """
    state = State(3)
    for i in range(n):
        B[state.stage] = state.phase
        state.advance()
    """
    assert printed(body, before=before) == [
        "stage: T.int32 = 0",
        "phase: T.int32 = 1",
        "for i in range(n):",
        "    B[stage] = phase",
        "    stage = stage + 1",
        "    if stage == 3:",
        "        stage = 0",
        "        phase = phase ^ 1",
    ]


def test_python_runs_while_a_kernel_is_read() -> None:
    body = """
    names = {f"{k}_{v:02}": v for k, v in zip("ab", range(2), strict=True) if v}
    T.static_assert(names == {"b_01": 1}, "wrong")
    values = [n * i for i in range(3)]
    B[0] = sum(values[1:], start=0)
    B[1] = T.meta_var(len(values))
    x = T.meta_var(n + 5)
    B[2] = x
    if T.constexpr(len(values) == 3):
        B[3], B[4] = values[:2]
    """
    assert printed(body) == [
        "B[0] = n + n * 2",
        "B[1] = 3",
        "B[2] = n + 5",
        "B[3] = 0",
        "B[4] = n",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def k(«A»):\n    pass", "missing-annotation"),
        ("def k(A: «3»):\n    pass", "bad-annotation"),
        ("def k(*«args»):\n    pass", "bad-annotation"),
        ("«def» k(n: T.int32):\n    x = n + 1", "no-entry"),
        ("def k(«n: T.constexpr»):\n    pass", "bad-annotation"),
        ("def k(A: «T.Tensor((4,), 'int32', scope='shared')»):\n    pass", "bad-annotation"),
        ("def k(A: T.Tensor(«(2.5,)», 'int32')):\n    pass", "bad-index"),
    ],
)
def test_functions_that_are_no_kernels(text: str, code: str) -> None:
    refused("@T.function\n" + text, code, whole=True)


@pytest.mark.parametrize(
    "params",
    [
        "«A: T.Tensor((m * m,), 'float32')»",
        "«A: T.Tensor((m * 2,), 'float32')», B: T.Tensor((m // 2,), 'float32')",
        "A: T.Tensor((q,), 'float32'), «B: T.Tensor((4, q + m), 'float32')»",
        "n: T.int32, «A: T.Tensor((n + m, 4), 'float32')»",
    ],
)
def test_symbols_that_no_argument_tells(params: str) -> None:
    text = f"""
    m, q = T.dynamic("m"), T.dynamic("q")
    @T.function
    def k({params}):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    """
    refused(text, "bad-annotation", whole=True)


HOST_ONLY = [
    ("«B[1]» = 3.0", "unsupported-statement"),
    ("if n > 2:\n        «B[1]» = 3.0", "unsupported-statement"),
    ("for j in range(n):\n        «T.cuda.cta_sync()»", "unsupported-statement"),
    ("x = «B[0]»", "unsupported-expression"),
    ("x = 1.0 + «B[n]»", "unsupported-expression"),
    ("if «B[0]» > 1.0:\n        n = 2", "unsupported-expression"),
    ("x = «T.sqrt(B_)» * 2.0", "unsupported-expression"),
    ("x = «T.cuda.thread_idx('x')» + 1", "unsupported-expression"),
    ("s = «T.alloc_shared((4,), 'float32')»", "unsupported-statement"),
]


@pytest.mark.parametrize(("statement", "code"), HOST_ONLY)
def test_what_only_a_kernel_does_is_refused_on_the_host(statement: str, code: str) -> None:
    text = f"""
@T.function
def k(B: T.Tensor((8,), "float32"), B_: T.float32, n: T.int32):
    {statement}
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    B[0] = 1.0
"""
    refused(text, code, whole=True)


def test_a_launch_does_not_read_memory() -> None:
    text = """
    @T.function
    def k(A: T.Tensor((8,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=«A[0]», block=32))
    """
    refused(text, "unsupported-expression", whole=True)


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        ("grid=1, block=«(64, 32)»", "launch-shape"),
        ("grid=1, block=«0»", "launch-shape"),
        ("grid=«1.5», block=32", "bad-index"),
        ("grid=«(1, 1, 1, 1)», block=32", "launch-shape"),
        ("grid=3, block=32, cluster=«2»", "launch-shape"),
        ("grid=1, block=32, preferred_shared_memory_carveout=«101»", "launch-shape"),
        ("grid=1, block=32, preferred_shared_memory_carveout=«-1»", "launch-shape"),
        ("grid=1, block=32, preferred_shared_memory_carveout=«'all'»", "launch-shape"),
        ("grid=1, block=32, priority=«'high'»", "launch-shape"),
        ("grid=1, block=32, priority=«0.5»", "launch-shape"),
        ("grid=1, block=32, priority=«True»", "launch-shape"),
        ("grid=1, block=32, cooperative=«'yes'»", "launch-shape"),
        ("grid=1, block=32, cooperative=«2»", "launch-shape"),
        ("grid=1, block=32, programmatic_stream_serialization=«3»", "launch-shape"),
        ("grid=1, block=32, nvlink_util_centric_scheduling=«'no'»", "launch-shape"),
        ("grid=1, block=32, cluster_scheduling_policy=«'fast'»", "launch-shape"),
        ("grid=1, block=32, cluster_scheduling_policy=«['spread']»", "launch-shape"),
        ("grid=1, block=32, mem_sync_domain=«'near'»", "launch-shape"),
        ("grid=1, block=32, mem_sync_domain_map=«3»", "launch-shape"),
        ("grid=1, block=32, preferred_cluster=«0»", "launch-shape"),
        ("grid=1, block=32, preferred_cluster=«(1, 1, 1, 1)»", "launch-shape"),
        ("grid=1, block=32, shared_memory_mode=«'big'»", "launch-shape"),
        ("grid=1, block=32), kernel_attrs=(«3»", "bad-call"),
        ("grid=1, block=32), backend_config=(«{}»", "bad-call"),
        ("grid=1, block=32, dynamic_smem_bytes=«-64»", "launch-shape"),
        ("grid=1, block=32, dynamic_smem_bytes=«1 << 40»", "bad-index"),
        ("grid=1, block=32, dynamic_smem_bytes=«1.5»", "bad-index"),
    ],
)
def test_launches_that_cannot_be(launch: str, code: str) -> None:
    text = f"""
    @T.function
    def k(n: T.int32):
        T.device_entry(launch=T.cuda.LaunchConfig({launch}))
    """
    refused(text, code, whole=True)


@pytest.mark.parametrize(
    "attribute",
    [
        *("min_blocks_per_sm=«0»", "min_blocks_per_sm=«True»", "max_blocks_per_cluster=«'a'»"),
        *("max_blocks_per_cluster=«17»", "max_registers_per_thread=«256»"),
        *("required_block_size=«(1, 0)»", "required_block_size=«'all'»"),
    ],
)
def test_attributes_that_no_kernel_has(attribute: str) -> None:
    text = f"""
    @T.function
    def k(n: T.int32):
        T.device_entry(
            launch=T.cuda.LaunchConfig(grid=1, block=32),
            kernel_attrs=T.cuda.KernelAttributes({attribute}))
    """
    refused(text, "launch-shape", whole=True)


@pytest.mark.parametrize(
    ("launch", "attributes"),
    [
        ("grid=1, block=32", "required_block_size=(64, 1, 1)"),
        ("grid=1, block=32", "required_block_size=64"),
        ("grid=1, block=(32, 2)", "required_block_size=32"),
        ("grid=4, block=32, cluster=4", "max_blocks_per_cluster=2"),
    ],
)
def test_a_launch_that_is_not_what_the_kernel_requires(launch: str, attributes: str) -> None:
    text = f"""
    @T.function
    def k(n: T.int32):
        «T.device_entry(
            launch=T.cuda.LaunchConfig({launch}),
            kernel_attrs=T.cuda.KernelAttributes({attributes}))»
    """
    refused(text, "launch-shape", whole=True)


def test_a_block_that_is_known_at_the_launch_is_the_required_one() -> None:
    made = read_text("""
    @T.function
    def k(A: T.Tensor((64,), "int32"), n: T.int32):
        T.device_entry(
            launch=T.cuda.LaunchConfig(grid=1, block=n),
            kernel_attrs=T.cuda.KernelAttributes(required_block_size=32))
        A[T.cuda.thread_idx("x")] = 1
    """)
    executable = tilewright.compile(made, backend="sim")
    a = np.zeros(64, np.int32)
    executable(a, 32)
    assert a.sum() == 32
    with pytest.raises(LaunchError) as caught:
        executable(a, 64)
    assert caught.value.code == "launch-shape"
    assert (caught.value.expected, caught.value.found) == ("(32, 1, 1)", "(64, 1, 1)")


def test_a_template_is_not_called() -> None:
    @T.jit
    def template(A: T.Tensor((4,), "int32"), *, N: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))

    with pytest.raises(FrontendError) as caught:
        template(1)
    assert caught.value.code == "bad-call"
    assert caught.value.location is not None
    assert "template(1)" in caught.value.location.source_line()
    assert ".specialize(" in (caught.value.hint or "")
    with pytest.raises(LaunchError) as refusal:
        tilewright.compile(template)
    assert ".specialize(" in (refusal.value.hint or "")


def test_constants_of_a_template_may_be_containers() -> None:
    @T.jit
    def template(A: T.Tensor((4,), "int32"), *, N: T.constexpr, parts: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        for index, value in enumerate(parts):
            A[index] = value

    one = template.specialize(N=3, parts=[1])
    assert one is template.specialize(N=3, parts=[1])
    assert one is not template.specialize(N=3, parts=[2])
    assert one is not template.specialize(N=3, parts=(1,))
    assert one is not template.specialize(N=3, parts={1: 2})
    with pytest.raises(FrontendError) as caught:
        template.specialize(N=3, parts=[bytearray(b"a")])
    assert caught.value.code == "bad-call"


def test_calls_with_wrong_arguments() -> None:
    refused("«T.device_entry()»", "bad-call")
    refused("s = «T.alloc_shared()»", "bad-call")
    refused("s = «T.alloc_shared((4,), colour=3)»", "bad-call")
    refused("x = T.«foo»(1)", "unknown-name")
    refused("x = T.cuda.«foo»(1)", "unknown-name")
    refused("T.cuda.tile.«foo»(1)", "unknown-name")


def test_a_wrong_call_shows_how_it_is_called() -> None:
    error = refused("«T.cuda.cta_sync(3)»", "bad-call")
    assert error.expected == "cta_sync()"
    error = refused("«T.ptx.ld.global_.f32(n, n, colour=3)»", "bad-call")
    assert error.message.startswith("T.ptx['ld.global.f32']()")


def test_only_functions_are_read() -> None:
    with pytest.raises(FrontendError) as caught:
        T.function(int)
    assert caught.value.code == "no-source"


def test_a_chain_of_calls_is_shown_by_its_ends() -> None:
    before = "@T.inline\ndef f(x):\n    return f(x)\n"
    with pytest.raises(FrontendError) as caught:
        read("B[0] = f(1)", before=before)
    text = str(caught.value)
    assert text.count("called from") == 8 and "called through" in text


def test_allocations_are_constant_and_well_formed() -> None:
    refused("s = «T.alloc_shared((n,), 'float32')»", "not-constant")
    refused("s = «T.alloc_shared((4,), 'float33')»", "unknown-name")
    refused("s = T.alloc_shared((4,), 'float32', align=«3»)", "bad-annotation")
    refused("s = T.alloc_shared((4,), 'float32', layout=«TileLayout(S[8:1])»)", "bad-layout")
    refused("s = T.alloc_tensor((4,), 'float32', scope=«'global'»)", "bad-call")


def test_text_without_a_source_is_refused() -> None:
    namespace: dict[str, object] = {"T": T}
    with pytest.raises(FrontendError) as caught:
        exec("@T.function\ndef k(n: T.int32):\n    pass\n", namespace)
    assert caught.value.code == "no-source"


def test_a_kernel_is_not_called_before_it_is_compiled() -> None:
    with pytest.raises(FrontendError) as caught:
        in_this_file(1, 2)
    assert caught.value.code == "bad-call"


def test_the_dialect_lists_its_names() -> None:
    assert {"float32", "Tensor", "ptx", "cuda", "device_entry", "unroll"} <= set(T.__all__)
    assert all(hasattr(T, name) for name in T.__all__)
    with pytest.raises(AttributeError, match="alloc_shared"):
        T.aloc_shared  # noqa: B018


def test_functions_of_the_dialect_outside_a_kernel() -> None:
    with pytest.raises(FrontendError) as caught:
        T.cuda.cta_sync()
    assert caught.value.code == "bad-call"


def test_a_cell_of_the_host_is_not_used_in_a_kernel() -> None:
    text = """
    @T.function
    def k(n: T.int32):
        x: T.int32 = n
        with «T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))»:
            T.cuda.printf("%d", x)
    """
    error = refused(text, "unbound-name", whole=True)
    assert "after" in (error.hint or "")


def test_a_parameter_has_no_default() -> None:
    refused("@T.function\ndef k(«n: T.int32» = 3):\n    pass", "bad-annotation", whole=True)


def test_the_seed_program(seed: Path) -> None:
    text = (seed / "warp_matmul.py").read_text().split("import torch")[0]
    for theirs, ours in (
        ("tvm_tirx.script import tirx as T", "tilewright import simt as T"),
        ("tvm_tirx.backend.cuda.axis", "tilewright.layout"),
        ("tvm_tirx.tirx.layout", "tilewright.layout"),
    ):
        text = text.replace(theirs, ours)
    made = parse_function(text)
    verify(made.program)
    assert parse(made.script()) == made.program


def test_a_helper_assigns_to_a_cell_around_it() -> None:
    body = """
    total: T.int32 = 0
    def add(x):
        total += x
    add(n)
    add(2)
    """
    assert printed(body)[1:] == ["total = total + n", "total = total + 2"]

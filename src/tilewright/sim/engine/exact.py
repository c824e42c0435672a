"""The arithmetic of tensor cores as native code: `isa.numerics.Fdpa`, for vectors of outputs.

May import `base`, `isa` and the rest of `sim.engine`. A vector of outputs is computed in 32-bit
integers: a product of two factors is exact in float32, and shifted to the greatest exponent of its
group and truncated it is below 2^27. Where that does not hold, for infinities and NaNs and for
exponents near the ends of float32, the outputs of the vector are computed one by one in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tilewright.base.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    SCALARS,
    UINT32,
    UINT64,
    DType,
)
from tilewright.isa.machine import Lanes, Update
from tilewright.isa.numerics import fdpa, least_exponent
from tilewright.sim.engine.context import TMEM_LANES
from tilewright.sim.engine.microkernel import (
    BLOCK,
    MASK_WORDS,
    Kind,
    Packed,
    as_word,
    held,
    stays,
)
from tilewright.sim.engine.spelling import llvm_type, scalar_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_BIAS = 127
_SHORT = SCALARS["int16"]
# Exponents of factors are kept with float32's bias, those of products with twice that. A product
# with a zero comes below _NOTHING whatever its other factor is, but for an infinity or a NaN: with
# one of these it comes above _HIGHEST in any case.
_ZERO, _NOTHING, _SPECIAL = -512, -200, 1024
# Products with exponents up to 126 are finite in float32; down to -64 nothing that is inexact
# there survives the truncation, and the sum is a normal number.
_HIGHEST, _LOWEST = 126 + 2 * _BIAS, -64 + 2 * _BIAS
_SUMMED = 16  # products whose truncated sum is below 2^31
_LOST = (1 << 29) - 1  # the bits of a float64 below a float32's
_EXPONENTS = 1 << 14  # where the exponents of a packed operand lie, in bytes from its start

# The factors of A, vectors, and of B, scalars, of each product.
Pairs = Sequence[tuple[Lanes, Lanes]]


def _loaded(m: NativeMachine, base: str, index: int | str, kind: DType, width: int) -> Lanes:
    """Load a vector from an array of such, or a scalar."""
    vector = llvm_type(kind, width)
    at = m.op(f"getelementptr {vector}, ptr {base}, i32 {index}")
    return m.lanes(kind, m.op(f"load {vector}, ptr {at}, align {kind.bytes}"), width)


def _keep(m: NativeMachine, value: Lanes, base: str, index: int | str) -> None:
    """Store a vector in an array of such, or a scalar."""
    vector = llvm_type(value.dtype, value.width)
    at = m.op(f"getelementptr {vector}, ptr {base}, i32 {index}")
    m.function.emit(f"store {vector} {value.value}, ptr {at}, align {value.dtype.bytes}")


class Arithmetic:
    """Emits the arithmetic of products of a kind, `inputs`, `result` and K, into a function."""

    def __init__(self, m: NativeMachine, inputs: DType, result: DType, depth: int) -> None:
        assert m.module.exact is not None, "numbers are those of a target"
        self.m = m
        self.how = fdpa(inputs, result, m.module.exact)
        self.inputs = inputs
        self.result = result
        self.length = min(self.how.length, depth)
        assert self.length <= _SUMMED and depth % self.length == 0

    # ---- exponents

    def _field(self, value: Lanes, kind: DType) -> Lanes:
        """Give a number's biased exponent, 255 for infinities and NaNs; a zero counts as any."""
        m = self.m
        field = m.bitcast((m.bitcast(value, UINT32) >> 23) & 0xFF, INT32)
        return m.binary("max", field, m.constant(least_exponent(kind) + _BIAS, INT32))

    def _is_zero(self, value: Lanes) -> Lanes:
        return self.m.bitcast(value, UINT32) << 1 == 0

    def exponents(self, factors: Lanes) -> Lanes:
        """Give the exponents of factors as int16."""
        m = self.m
        field = self._field(factors, self.inputs)
        known = m.select(field == 0xFF, m.constant(_SPECIAL, INT32), field)
        known = m.select(self._is_zero(factors), m.constant(_ZERO, INT32), known)
        return m.cast(known, _SHORT)

    def greatest(self, pairs: Sequence[tuple[Lanes, Lanes]]) -> Lanes:
        """Give the greatest exponent of products, by those of their factors."""
        m = self.m
        top = pairs[0][0] + pairs[0][1]
        for a, b in pairs[1:]:
            top = m.binary("max", top, a + b)
        return top

    # ---- a group

    def added(self, factors: Callable[[], Pairs], top: Lanes, start: Lanes) -> Lanes:
        """Add the products of a group to what there is (float32), rounding once.

        `factors` loads them, where they are used; `top` is the products' greatest exponent.
        """
        m = self.m
        own = self._field(start, self.result) + _BIAS
        own = m.select(self._is_zero(start), m.constant(_ZERO, INT32), own)
        reach = m.binary("max", m.cast(top, INT32), own)
        outside = reach > _HIGHEST
        least = _LOWEST
        if self.result == FLOAT16:
            # What there is has an exponent above that, or is zero and counts with it.
            least = self.how.zero_exponent + 2 * _BIAS
        else:
            outside = outside | ((reach < _LOWEST) & (reach > _NOTHING))
        reach = m.binary("max", reach, m.constant(least, INT32))
        found = m.function.slot(llvm_type(FLOAT32, start.width))
        hard, easy, after = (m.function.new_label(s) for s in ("hard", "easy", "after"))
        m.function.branch_if(self._any(outside), hard, easy)
        m.function.label(hard)
        pairs = factors()
        lost = self._has_nan(pairs, start)
        nan = m.canonical(m.constant(float("nan"), FLOAT32))
        _keep(m, m.select(lost, nan, start), found, 0)
        some = m.function.new_label("some")
        m.function.branch_if(self._any(~lost), some, after)
        m.function.label(some)
        self._one_by_one(pairs, found, start.width)
        m.function.branch(after)
        m.function.label(easy)
        _keep(m, self._sum(factors(), reach, start), found, 0)
        m.function.branch(after)
        m.function.label(after)
        return _loaded(m, found, 0, FLOAT32, start.width)

    def _has_nan(self, pairs: Pairs, start: Lanes) -> Lanes:
        """Tell which outputs have a NaN among their terms: all, of memory that nobody wrote."""
        found = start != start
        for pair in pairs:
            for each in pair:
                found = found | (each != each)
        return found

    def _any(self, condition: Lanes) -> str:
        width = condition.width
        bits = self.m.op(f"bitcast <{width} x i1> {condition.value} to i{width}")
        return self.m.op(f"icmp ne i{width} {bits}, 0")

    def _sum(self, pairs: Sequence[tuple[Lanes, Lanes]], reach: Lanes, start: Lanes) -> Lanes:
        """Sum in integers; exponents are known to be such that all is exact."""
        m = self.m
        unit = 2 * _BIAS + self.how.fraction  # of the last bit that is kept, if `reach` is 0
        scale = self._power(unit + _BIAS - reach)
        terms = [self._truncated(self._times(a, b), scale) for a, b in pairs]
        total = terms[0]
        for each in terms[1:]:
            total = total + each
        # Thirty-three bits, of which the result keeps the first.
        own = self._truncated(start, scale)
        exact = m.float_operation("add", m.cast(total, FLOAT64), m.cast(own, FLOAT64))
        bits = m.bitcast(exact, UINT64)
        kept = bits & m.constant(~_LOST, UINT64)
        if self.result == FLOAT16:
            # To odd, after which a second rounding is right.
            lost = (bits & m.constant(_LOST, UINT64)) != 0
            kept = m.select(lost, kept | m.constant(_LOST + 1, UINT64), kept)
        single = m.cast(m.bitcast(kept, FLOAT64), FLOAT32)
        single = self._times(single, self._power(reach - unit + _BIAS))
        return self._half(single) if self.result == FLOAT16 else single

    def _power(self, field: Lanes) -> Lanes:
        return self.m.bitcast(field << 23, FLOAT32)

    def _times(self, a: Lanes, b: Lanes) -> Lanes:
        return self.m.float_operation("mul", a, b)

    def _truncated(self, number: Lanes, scale: Lanes) -> Lanes:
        """Shift a term, and make it an integer; its size is known to be below 2^31."""
        m = self.m
        scaled = self._times(number, scale)
        source, target = (llvm_type(kind, scaled.width) for kind in (FLOAT32, INT32))
        text = f"fptosi {source} {scaled.value} to {target}"
        return m.lanes(INT32, m.op(text), scaled.width)

    def _half(self, number: Lanes) -> Lanes:
        """Round to float16, and give that as float32; there is no negative zero."""
        m = self.m
        rounded = m.cast(m.cast(number, FLOAT16), FLOAT32)
        return m.float_operation("add", rounded, m.constant(0.0, FLOAT32))

    # ---- one output after another

    def _one_by_one(self, pairs: Pairs, found: str, width: int) -> None:
        """Compute outputs in float64, from what there is at `found` and back to it."""
        m = self.m
        name = f"fdpa_{self.inputs.name}_{self.result.name}_{self.length}_{width}"
        if name not in m.module.functions:
            one = m.module.machine(name)
            Arithmetic(one, self.inputs, self.result, self.length).emit_one(width)
        a, b = (m.function.slot(f"[{self.length * each} x float]") for each in (width, 1))
        for k, (ours, theirs) in enumerate(pairs):
            _keep(m, ours, a, k)
            _keep(m, theirs, b, k)
        with m.function.loop(str(width), "i32") as index:
            row = m.op(f"getelementptr float, ptr {a}, i32 {index}")
            start = _loaded(m, found, index, FLOAT32, 0)
            total = m.op(f"call float @{name}(ptr {row}, ptr {b}, float {start.value})")
            _keep(m, m.lanes(FLOAT32, total, 0), found, index)

    def emit_one(self, width: int) -> None:
        """Emit the function of one output: a group of factors in memory, what there is.

        The factors of A are `width` elements apart.
        """
        m = self.m
        given = m.lanes(FLOAT32, "%given", 0)
        wide = m.cast(given, FLOAT64)
        own = self._counted(wide, self._field(given, self.result) + _BIAS)
        top, total, plain = (m.function.slot(kind, 8) for kind in ("i32", "double", "double"))
        _keep(m, own, top, 0)
        _keep(m, wide, plain, 0)
        with m.function.loop(str(self.length), "i32") as k:
            product, exponent = self._term(k, width)
            _keep(m, m.binary("max", _loaded(m, top, 0, INT32, 0), exponent), top, 0)
            self._increase(plain, product)
        unit = _loaded(m, top, 0, INT32, 0) - (2 * _BIAS + self.how.fraction)
        scale, back = (self._wide_power(each) for each in (-unit, unit))
        _keep(m, self._shifted(wide, scale), total, 0)
        with m.function.loop(str(self.length), "i32") as k:
            self._increase(total, self._shifted(self._term(k, width)[0], scale))
        exact = m.float_operation("mul", _loaded(m, total, 0, FLOAT64, 0), back)
        # Of infinities and NaNs the terms alone decide.
        sum_of_all = _loaded(m, plain, 0, FLOAT64, 0)
        special = m.canonical(m.cast(sum_of_all, FLOAT32))
        found = m.select(m.intrinsic("isfinite", sum_of_all), self._rounded(exact), special)
        m.function.emit(f"ret float {found.value}")
        m.function.finish("float", "ptr %a, ptr %b, float %given", "noinline")

    def _term(self, k: str, width: int) -> tuple[Lanes, Lanes]:
        """Give the product of a k, and its exponent with twice the bias."""
        m = self.m
        a = _loaded(m, "%a", m.op(f"mul i32 {k}, {width}"), FLOAT32, 0)
        b = _loaded(m, "%b", k, FLOAT32, 0)
        product = m.float_operation("mul", m.cast(a, FLOAT64), m.cast(b, FLOAT64))
        exponent = self._field(a, self.inputs) + self._field(b, self.inputs)
        return product, self._counted(product, exponent)

    def _counted(self, term: Lanes, exponent: Lanes) -> Lanes:
        zero = self.m.constant(self.how.zero_exponent + 2 * _BIAS, INT32)
        return self.m.select(term == 0, zero, exponent)

    def _increase(self, slot: str, term: Lanes) -> None:
        m = self.m
        _keep(m, m.float_operation("add", _loaded(m, slot, 0, FLOAT64, 0), term), slot, 0)

    def _wide_power(self, exponent: Lanes) -> Lanes:
        return self.m.bitcast(self.m.cast(exponent + 1023, UINT64) << 52, FLOAT64)

    def _shifted(self, term: Lanes, scale: Lanes) -> Lanes:
        m = self.m
        return m.intrinsic("trunc", m.float_operation("mul", term, scale))

    def _rounded(self, total: Lanes) -> Lanes:
        """Round a float64 to the result's type, and give that as float32."""
        m = self.m
        if self.result == FLOAT16:
            return self._half(total)
        # Subnormal results are multiples of 2^-149; of others some bits are left out.
        units = self._shifted(total, m.constant(2.0**149, FLOAT64))
        small = m.float_operation("mul", units, m.constant(2.0**-149, FLOAT64))
        kept = m.bitcast(m.bitcast(total, UINT64) & m.constant(~_LOST, UINT64), FLOAT64)
        is_small = m.intrinsic("abs", total) < m.constant(2.0**-126, FLOAT64)
        single = m.cast(m.select(is_small, small, kept), FLOAT32)
        return m.float_operation("add", single, m.constant(0.0, FLOAT32))


@dataclass(frozen=True)
class Operands:
    """Where the factors of a vector of outputs lie, and the exponents (int16) of those of A.

    Of A they are vectors of that `width`, k after k; of B a scalar for each k, at `places`.
    """

    m: NativeMachine
    left: str
    left_exponents: str
    right: str
    places: Sequence[int]
    width: int

    def factors(self, ks: range) -> Pairs:
        """Load the factors of some ks."""
        m = self.m
        return [
            (
                _loaded(m, self.left, k, FLOAT32, self.width),
                _loaded(m, self.right, self.places[k], FLOAT32, 0),
            )
            for k in ks
        ]

    def sum(self, arithmetic: Arithmetic, theirs: Sequence[Lanes], total: Lanes) -> Lanes:
        """Add all products to what there is; `theirs` are the exponents of B."""
        m, length = self.m, arithmetic.length
        for first in range(0, len(self.places), length):
            ks = range(first, first + length)
            ours = [_loaded(m, self.left_exponents, k, _SHORT, self.width) for k in ks]
            top = arithmetic.greatest(list(zip(ours, theirs[first : first + length], strict=True)))
            total = arithmetic.added(partial(self.factors, ks), top, total)
        return total


def _repeated(m: NativeMachine, exponents: str, places: Sequence[int], width: int) -> list[Lanes]:
    """Load the exponents of B, each for all outputs of a vector."""
    found = [_loaded(m, exponents, place, _SHORT, 0) for place in places]
    return [m.lanes(_SHORT, m.spread(each, width), width) for each in found]


# ---------------------------------------------------------------------------- fragments of a warp


class FactorsInMemory(Protocol):
    """B in memory as float32, in some order: see `fragments`."""

    place: str
    size: int

    def index(self, column: int, k: int) -> int:
        """Tell where a factor is."""
        ...


class Columns:
    """Adds products to columns of D, whose factors of A are vectors and those of B in memory."""

    def __init__(
        self, m: NativeMachine, inputs: DType, result: DType, left: Sequence[Lanes]
    ) -> None:
        self.m = m
        self.inputs = inputs
        self.result = result
        self.depth = len(left)
        self.width = left[0].width
        self.arithmetic = Arithmetic(m, inputs, result, self.depth)
        exponents = [self.arithmetic.exponents(each) for each in left]
        self.left = [self._kept(each) for each in (left, exponents)]

    def _kept(self, values: Sequence[Lanes]) -> str:
        vector = llvm_type(values[0].dtype, self.width)
        place = self.m.function.slot(f"[{self.depth} x {vector}]")
        for k, each in enumerate(values):
            _keep(self.m, each, place, k)
        return place

    def add(self, right: FactorsInMemory, columns: Mapping[int, str]) -> None:
        """Add the products of columns of B to sums in memory."""
        m = self.m
        exponents = m.function.slot(f"[{right.size} x i16]")
        for index in range(right.size // BLOCK):
            found = _loaded(m, right.place, index, FLOAT32, BLOCK)
            _keep(m, self.arithmetic.exponents(found), exponents, index)
        for column, total in columns.items():
            first = right.index(column, 0)
            places = tuple(right.index(column, k) - first for k in range(self.depth))
            name = self._function(places)
            listed = [f"ptr {each}" for each in self.left]
            for kind, base in (("float", right.place), ("i16", exponents)):
                listed.append(f"ptr {m.op(f'getelementptr {kind}, ptr {base}, i32 {first}')}")
            m.function.emit(f"call void @{name}({', '.join(listed)}, ptr {total})")

    def _function(self, places: tuple[int, ...]) -> str:
        """Name the function that adds to a column, with factors at such places."""
        listed = "_".join(map(str, places))
        name = f"fdpa_column_{self.inputs.name}_{self.result.name}_{self.width}_{listed}"
        if name not in self.m.module.functions:
            m = self.m.module.machine(name)
            of = Operands(m, "%left", "%left_exponents", "%right", places, self.width)
            theirs = _repeated(m, "%right_exponents", places, self.width)
            arithmetic = Arithmetic(m, self.inputs, self.result, self.depth)
            start = _loaded(m, "%column", 0, FLOAT32, self.width)
            _keep(m, of.sum(arithmetic, theirs, start), "%column", 0)
            m.function.emit("ret void")
            names = ("left", "left_exponents", "right", "right_exponents", "column")
            m.function.finish("void", ", ".join(f"ptr %{each}" for each in names), "noinline")
        return name


# ---------------------------------------------------------------------------- tiles in memory


def multiply(
    m: NativeMachine,
    inputs: DType,
    kind: Kind,
    first: str,
    lane: Lanes,
    step: Lanes,
    of: Packed,
    update: Update,
) -> None:
    """Multiply into Tensor Memory as `microkernel.multiply` does, but as the target adds."""
    name = f"fdpa_tiles_{inputs.name}_{kind.name}"
    if name not in m.module.functions:
        _Tiles(m.module.machine(name), inputs, kind, of.depth).emit()
    listed = [f"ptr {each}" for each in (first, of.left, of.right)]
    listed += [f"i32 {each.value}" for each in (lane, step, of.rows, of.columns, *update.kept)]
    listed += [f"i1 {update.accumulate.value}", f"float {update.scale.value}"]
    m.function.emit(f"call void @{name}({', '.join(listed)})")


class _Tiles:
    """Emits the product of panels of sixteen rows of A and of sixteen columns of B."""

    def __init__(self, m: NativeMachine, inputs: DType, kind: Kind, depth: int) -> None:
        self.m = m
        self.kind = kind
        self.depth = depth
        self.arithmetic = Arithmetic(m, inputs, kind.result, depth)

    def _word(self, name: str) -> Lanes:
        return self.m.lanes(UINT32, f"%{name}", 0)

    def emit(self) -> None:
        """Emit the function."""
        m = self.m
        rows, columns = self._word("rows"), self._word("columns")
        kept = [f"kept{index}" for index in range(MASK_WORDS if self.kind.masked else 0)]
        self._put_exponents("%left", rows >> 4)
        self._put_exponents("%right", (columns + (BLOCK - 1)) >> 4)
        with m.function.loop(str(columns.value), "i32") as outer:
            column = m.lanes(UINT32, outer, 0)
            right = self._panel("%right", column >> 4, column & (BLOCK - 1))
            cells = m.op(f"getelementptr [{TMEM_LANES} x i32], ptr %first, i32 {column.value}")
            places = range(0, self.depth * BLOCK, BLOCK)
            theirs = _repeated(m, right[1], places, BLOCK)
            with m.function.loop(str((rows >> 4).value), "i32") as inner:
                block = m.lanes(UINT32, inner, 0)
                left = self._panel("%left", block, m.constant(0, UINT32))
                lane = (self._word("lane") + block * self._word("step")) & (TMEM_LANES - 1)
                cell = m.op(f"getelementptr i32, ptr {cells}, i32 {lane.value}")
                word = _loaded(m, cell, 0, UINT32, BLOCK)
                of = Operands(m, *left, right[0], places, BLOCK)
                total = of.sum(self.arithmetic, theirs, self._start(word))
                found = as_word(m, total, self.kind.result)
                if kept:
                    found = m.select(stays(m, [*map(self._word, kept)], lane), word, found)
                _keep(m, found, cell, 0)
        m.function.emit("ret void")
        words = [f"i32 %{name}" for name in ("lane", "step", "rows", "columns", *kept)]
        pointers = ["ptr %first", "ptr %left", "ptr %right"]
        listed = [*pointers, *words, "i1 %accumulate", "float %scale"]
        m.function.finish("void", ", ".join(listed), "noinline")

    def _start(self, word: Lanes) -> Lanes:
        m = self.m
        number = held(m, word, self.kind.result)
        if self.kind.scaled:
            number = number * m.lanes(FLOAT32, "%scale", 0)
        return m.select(m.lanes(BOOL, "%accumulate", 0), number, m.constant(0.0, FLOAT32))

    def _put_exponents(self, base: str, panels: Lanes) -> None:
        """Put the exponents of an operand beside it."""
        m = self.m
        start = m.op(f"getelementptr i8, ptr {base}, i32 {_EXPONENTS}")
        with m.function.loop(str((panels * self.depth).value), "i32") as index:
            found = _loaded(m, base, index, FLOAT32, BLOCK)
            _keep(m, self.arithmetic.exponents(found), start, index)

    def _panel(self, base: str, panel: Lanes, place: Lanes) -> tuple[str, str]:
        """Address a place in the first vector of a panel, and its exponent."""
        m = self.m
        index = panel * (self.depth * BLOCK) + place
        start = m.op(f"getelementptr i8, ptr {base}, i32 {_EXPONENTS}")
        factors = m.op(f"getelementptr {scalar_type(FLOAT32)}, ptr {base}, i32 {index.value}")
        return factors, m.op(f"getelementptr i16, ptr {start}, i32 {index.value}")

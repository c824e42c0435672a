"""Random kernels, each as source text and as what a thread of it does in plain Python.

Every piece of a kernel is made as both at once, so that the expected values share no code with
the compiler. Threads run one after another as generators; where lanes meet (barriers, shuffles,
handshakes) a thread yields a request, and `expected` answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDTHS = {f"{kind}{bits}": bits for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
INTEGERS = tuple(WIDTHS)
CTAS = 2
SLOTS = 24  # rows of results per kind
NAN: np.float32 = np.uint32(0x7FFFFFFF).view(np.float32)

Value = Any
Run = Generator[Any, Any, str | None]


@dataclass
class Thread:
    """What a thread knows and holds."""

    cta: int
    i: int
    n: int
    given: np.ndarray
    integers: np.ndarray
    floats: np.ndarray
    cells: dict[str, Value] = field(default_factory=dict)
    local: list[int] = field(default_factory=lambda: [0] * 4)
    shared: list[int] = field(default_factory=lambda: [0] * 4)


@dataclass(frozen=True)
class E:
    """An expression: its text, its type, and its value in a thread."""

    text: str
    type: str
    of: Callable[[Thread], Value]


@dataclass(frozen=True)
class S:
    """A statement: its lines, and what a thread does."""

    lines: list[str]
    run: Callable[[Thread], Run]


# ---------------------------------------------------------------------------- arithmetic


def wrap(value: int, type: str) -> int:
    """Bring a number into the range of an integer type."""
    bits = WIDTHS[type]
    value &= (1 << bits) - 1
    return value - (1 << bits) if type[0] == "i" and value >> (bits - 1) else value


def integer(op: str, a: int, b: int, type: str) -> int:
    """Apply an operation of two integers."""
    bits = WIDTHS[type]
    match op:
        case "+":
            return wrap(a + b, type)
        case "-":
            return wrap(a - b, type)
        case "*":
            return wrap(a * b, type)
        case "//":
            return wrap(a // b if b else -1, type)
        case "%":
            return wrap(a % b, type) if b else a
        case "<<":
            return wrap(a << b, type) if 0 <= b < bits else 0
        case ">>":
            return a >> (b if 0 <= b < bits else bits - 1) if 0 <= b < bits or a < 0 else 0
        case "&":
            return a & b
        case "|":
            return a | b
        case "^":
            return a ^ b
        case "min":
            return min(a, b)
        case _:
            return max(a, b)


def canonical(x: np.float32) -> np.float32:
    """Make a NaN the one that arithmetic gives."""
    return NAN if np.isnan(x) else x


def floating(op: str, a: np.float32, b: np.float32) -> np.float32:
    """Apply an operation of two float32."""
    with np.errstate(all="ignore"):
        match op:
            case "+":
                return canonical(a + b)
            case "-":
                return canonical(a - b)
            case "*":
                return canonical(a * b)
            case "/":
                return canonical(a / b)
            case _:
                if np.isnan(a) or np.isnan(b):
                    return canonical(b if np.isnan(a) else a)
                first_is_less = bool(np.signbit(a) if a == b else a < b)
                return a if first_is_less == (op == "min") else b


def compare(op: str, a: Value, b: Value) -> bool:
    """Compare two numbers of one type."""
    return bool(
        {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[op]
    )


def convert(value: Value, source: str, target: str) -> Value:
    """Convert a number: integers wrap, floats round, saturate, and a NaN becomes 0."""
    if source == target:
        return value
    if target == "float32":
        if source == "bool":
            return np.float32(value)
        return np.array(value, np.int64 if value < 0 else np.uint64).astype(np.float32)[()]
    if source != "float32":
        return wrap(int(value), target)
    if np.isnan(value):
        return 0
    bits, signed = WIDTHS[target], target[0] == "i"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if np.isinf(value):
        return high if value > 0 else low
    return min(max(int(value), low), high)


# ---------------------------------------------------------------------------- making kernels


@dataclass(frozen=True)
class Around:
    """Where a statement stands."""

    together: bool = True  # all threads of the CTA come here together
    in_loop: bool = False  # a jump may leave the innermost loop
    returns: bool = False
    depth: int = 0


_FLOAT_OPS = ("+", "-", "*", "/", "min", "max")
_INTEGER_OPS = ("+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "min", "max")
_ARITHMETIC = {"min": "T.min", "max": "T.max"}
_INTERESTING = (0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255)


class Maker:
    """Makes a kernel by the choices of a random source."""

    def __init__(self, random: Any, *, warps_wait: bool) -> None:
        self.random = random
        self.warps_wait = warps_wait
        self.threads = random.choice((32, 40, 64))
        self.count = 0
        self.boxes = 0
        self.slots = {"integers": 0, "floats": 0}
        self.cells: dict[str, str] = {}
        self.names: list[E] = []
        self.initial: list[S] = []
        for index, type in enumerate((*random.sample(INTEGERS, 3), "int32", "float32")):
            name = f"c{index}"
            start = self.cast(self.given(index), type)
            self.initial.append(self._declare(name, start))
            self.cells[name] = type

    def choice(self, options: Any) -> Any:
        """Choose one of several."""
        return self.random.choice(options)

    def chance(self, percent: int) -> bool:
        """Decide."""
        return self.random.randrange(100) < percent

    def fresh(self, stem: str) -> str:
        """Invent a name."""
        self.count += 1
        return f"{stem}{self.count}"

    # ---- expressions

    def given(self, column: int) -> E:
        """Read an input of the thread."""
        return E(f"Given[cta, {column}, i]", "int64", lambda t: int(t.given[t.cta, column, t.i]))

    def literal(self, type: str) -> E:
        """Make a constant."""
        if type == "float32":
            number = self.choice((0.0, -0.0, 0.5, -1.5, 3.0, 1e10, -1e30, 1e-40))
            return E(f"T.float32({number!r})", type, lambda t: np.float32(number))
        bits = WIDTHS[type]
        top = (1 << bits) - 1 if type[0] == "u" else (1 << (bits - 1)) - 1
        bottom = wrap(top + 1, type)
        value = wrap(self.choice((*_INTERESTING, -1, -2, -7, top, bottom)), type)
        return E(f"T.{type}({value})", type, lambda t: value)

    def cast(self, e: E, type: str) -> E:
        """Convert an expression."""
        if e.type == type:
            return e
        return E(f'T.cast({e.text}, "{type}")', type, lambda t: convert(e.of(t), e.type, type))

    def leaf(self, type: str, *, uniform: bool = False) -> E:
        """Make a simple expression."""
        if uniform:
            return self.cast(
                self.choice(
                    (
                        E("n", "int32", lambda t: t.n),
                        E("cta", "int32", lambda t: t.cta),
                        self.literal("int32"),
                    )
                ),
                type,
            )
        same = [name for name, kind in self.cells.items() if kind == type]
        if same and self.chance(50):
            name = self.choice(same)
            return E(name, type, lambda t: t.cells[name])
        names = [e for e in self.names if e.type == type]
        if names and self.chance(50):
            return self.choice(names)
        match self.random.randrange(6):
            case 0 | 1:
                return self.literal(type)
            case 2:
                return self.cast(E("i", "int32", lambda t: t.i), type)
            case 3:
                name, kind = self.choice(list(self.cells.items()))
                return self.cast(E(name, kind, lambda t: t.cells[name]), type)
            case 4:
                index = self.choice((0, 1, 2, 3))
                return self.cast(E(f"local[{index}]", "int32", lambda t: t.local[index]), type)
            case _:
                return self.leaf(type, uniform=True)

    def expression(self, type: str, depth: int = 2, *, uniform: bool = False) -> E:
        """Make an expression of a type."""
        if depth == 0 or self.chance(25):
            return self.leaf(type, uniform=uniform)
        a = self.expression(type, depth - 1, uniform=uniform)
        kind = self.random.randrange(10)
        if kind == 0:
            source = self.choice((*INTEGERS, "float32"))
            return self.cast(self.expression(source, depth - 1, uniform=uniform), type)
        if kind == 1:
            c = self.condition(depth - 1, uniform=uniform)
            b = self.expression(type, depth - 1, uniform=uniform)
            text = f"T.select({c.text}, {a.text}, {b.text})"
            return E(text, type, lambda t: a.of(t) if c.of(t) else b.of(t))
        if kind == 2 and type == "float32":
            return E(f"-{_group(a)}", type, lambda t: -a.of(t))
        if kind == 2:
            op = self.choice("-~")
            sign = -1 if op == "-" else 1
            return E(
                f"{op}{_group(a)}",
                type,
                lambda t: wrap(-a.of(t) if sign < 0 else ~a.of(t), type),
            )
        if kind == 3 and not uniform and type == "int32":
            at = self.expression("int32", depth - 1)
            if self.chance(50):
                text = f"local[{_group(at)} & 3]"
                return E(text, type, lambda t: t.local[at.of(t) & 3])
            text = f"shared[i * 4 + ({_group(at)} & 3)]"
            return E(text, type, lambda t: t.shared[at.of(t) & 3])
        b = self.expression(type, depth - 1, uniform=uniform)
        op = self.choice(_FLOAT_OPS if type == "float32" else _INTEGER_OPS)
        if op in _ARITHMETIC:
            text = f"{_ARITHMETIC[op]}({a.text}, {b.text})"
        else:
            text = f"{_group(a)} {op} {_group(b)}"
        if type != "float32":
            return E(text, type, lambda t: integer(op, a.of(t), b.of(t), type))
        if op == "*":
            text = f"T.no_contract({text})"
        return E(text, type, lambda t: floating(op, a.of(t), b.of(t)))

    def condition(self, depth: int = 1, *, uniform: bool = False) -> E:
        """Make a condition."""
        if depth and self.chance(25):
            a, b = (self.condition(depth - 1, uniform=uniform) for _ in range(2))
            op = self.choice(("and", "or"))
            both = f"({a.text}) {op} ({b.text})"
            if op == "and":
                return E(both, "bool", lambda t: a.of(t) and b.of(t))
            return E(both, "bool", lambda t: a.of(t) or b.of(t))
        type = self.choice((*INTEGERS, "int32", "int32", "float32"))
        a = self.expression(type, depth, uniform=uniform)
        b = self.expression(type, depth, uniform=uniform)
        op = self.choice(("<", "<=", ">", ">=", "==", "!="))
        text = f"{_group(a)} {op} {_group(b)}"
        if self.chance(15):
            return E(f"not ({text})", "bool", lambda t: not compare(op, a.of(t), b.of(t)))
        return E(text, "bool", lambda t: compare(op, a.of(t), b.of(t)))

    # ---- statements

    def _declare(self, name: str, value: E) -> S:
        def run(t: Thread) -> Run:
            t.cells[name] = value.of(t)
            return None
            yield

        return S([f"{name}: T.{value.type} = {value.text}"], run)

    def block(self, around: Around, size: int) -> S:
        """Make some statements."""
        known = len(self.names)
        parts = [self.statement(around) for _ in range(self.random.randrange(1, size + 1))]
        del self.names[known:]
        return sequence(parts)

    def statement(self, around: Around) -> S:
        """Make a statement that may stand there."""
        roll = self.random.randrange(100)
        if around.depth < 3 and roll < 34:
            return self.choice((self.branch, self.branch, self.counted, self.turns))(around)
        if roll < 42 and around.depth and (around.in_loop or around.returns):
            return self.jump(around)
        if roll < 54 and around.together:
            return self.choice((self.exchange, self.shuffle, self.halves, self.handshake))(around)
        if roll < 60 and self.warps_wait:
            return S(["T.cuda.nano_sleep(1)"], lambda t: _nothing())
        return self.choice(
            (self.assign, self.assign, self.assign, self.name, self.put, self.put_shared, self.out)
        )(around)

    def assign(self, around: Around) -> S:
        """Change a cell."""
        name, type = self.choice(list(self.cells.items()))
        value = self.expression(type)

        def run(t: Thread) -> Run:
            t.cells[name] = value.of(t)
            return None
            yield

        return S([f"{name} = {value.text}"], run)

    def name(self, around: Around) -> S:
        """Give a value a name."""
        name, type = self.fresh("v"), self.choice((*INTEGERS, "float32"))
        value = self.expression(type)

        def run(t: Thread) -> Run:
            t.cells[name] = value.of(t)
            return None
            yield

        self.names.append(E(name, type, lambda t: t.cells[name]))
        return S([f"{name} = {value.text}"], run)

    def put(self, around: Around) -> S:
        """Change the local array."""
        at, value = self.expression("int32", 1), self.expression("int32")
        if self.chance(40):
            at = self.literal("int32")

        def run(t: Thread) -> Run:
            t.local[at.of(t) & 3] = value.of(t)
            return None
            yield

        return S([f"local[{_group(at)} & 3] = {value.text}"], run)

    def put_shared(self, around: Around) -> S:
        """Change the thread's own part of shared memory."""
        at, value = self.expression("int32", 1), self.expression("int32")

        def run(t: Thread) -> Run:
            t.shared[at.of(t) & 3] = value.of(t)
            return None
            yield

        return S([f"shared[i * 4 + ({_group(at)} & 3)] = {value.text}"], run)

    def out(self, around: Around) -> S:
        """Write a result."""
        floating = self.chance(30)
        where = "floats" if floating else "integers"
        if self.slots[where] == SLOTS - len(self.cells):
            return self.assign(around)
        slot = self.slots[where]
        self.slots[where] += 1
        value = self.expression("float32" if floating else self.choice(INTEGERS))
        return self.write(where, slot, value)

    def write(self, where: str, slot: int, value: E) -> S:
        """Write a result at a place."""
        value = self.cast(value, "float32" if where == "floats" else "int64")

        def run(t: Thread) -> Run:
            getattr(t, where)[t.cta, slot, t.i] = value.of(t)
            return None
            yield

        return S([f"{where.capitalize()}[cta, {slot}, i] = {value.text}"], run)

    # ---- control

    def branch(self, around: Around) -> S:
        """Make an `if`."""
        uniform = self.chance(30)
        condition = self.condition(uniform=uniform)
        inner = Around(
            around.together and uniform, around.in_loop, around.returns, around.depth + 1
        )
        then = self.block(inner, 3)
        orelse = self.block(inner, 3) if self.chance(50) else None
        lines = [f"if {condition.text}:", *indented(then.lines)]
        if orelse is not None:
            lines += ["else:", *indented(orelse.lines)]

        def run(t: Thread) -> Run:
            if condition.of(t):
                return (yield from then.run(t))
            if orelse is not None:
                return (yield from orelse.run(t))
            return None

        return S(lines, run)

    def counted(self, around: Around) -> S:
        """Make a `for`."""
        name = self.fresh("j")
        uniform = self.chance(40)
        bounds = [self.expression("int32", 1, uniform=uniform) for _ in range(2)]
        start, stop = (E(f"({_group(e)} & 3)", "int32", lambda t, e=e: e.of(t) & 3) for e in bounds)
        step = self.choice((1, 1, 2, -1))
        together = around.together and uniform
        inner = Around(together, not together, around.returns, around.depth + 1)
        self.names.append(E(name, "int32", lambda t: t.cells[name]))
        body = self.block(inner, 3)
        self.names.pop()

        def run(t: Thread) -> Run:
            for turn in range(start.of(t), stop.of(t), step):
                t.cells[name] = turn
                signal = yield from body.run(t)
                if signal == "break":
                    break
                if signal == "return":
                    return signal
            return None

        head = f"for {name} in range({start.text}, {stop.text}, {step}):"
        return S([head, *indented(body.lines)], run)

    def turns(self, around: Around) -> S:
        """Make a `while` of at most three turns."""
        fuel = self.fresh("fuel")
        uniform = self.chance(30)
        condition = self.condition(uniform=uniform)
        together = around.together and uniform
        inner = Around(together, not together, around.returns, around.depth + 1)
        body = self.block(inner, 3)

        def run(t: Thread) -> Run:
            t.cells[fuel] = 0
            while t.cells[fuel] < 3 and condition.of(t):
                t.cells[fuel] += 1
                signal = yield from body.run(t)
                if signal == "break":
                    break
                if signal == "return":
                    return signal
            return None

        lines = [
            f"{fuel}: T.int32 = 0",
            f"while {fuel} < 3 and ({condition.text}):",
            f"    {fuel} += 1",
            *indented(body.lines),
        ]
        return S(lines, run)

    def jump(self, around: Around) -> S:
        """Make a jump, mostly one that only some threads take."""
        kinds = ("break", "continue") if around.in_loop else ("return",)
        kind = self.choice((*kinds, "return") if around.returns else kinds)
        condition = self.condition()

        def run(t: Thread) -> Run:
            return kind if condition.of(t) else None
            yield

        return S([f"if {condition.text}:", f"    {kind}"], run)

    # ---- where lanes meet

    def exchange(self, around: Around) -> S:
        """Hand numbers around the CTA by way of shared memory."""
        value, by = self.expression("int32"), self.choice((1, 5, 17, 31))
        count = self.threads

        def run(t: Thread) -> Run:
            everyone = yield "sync", value.of(t)
            t.cells["c3"] = everyone[(t.i + by) % count]
            yield "sync", 0
            return None

        return S(
            [
                f"mail[i] = {value.text}",
                "T.cuda.cta_sync()",
                f"c3 = mail[(i + {by}) % {count}]",
                "T.cuda.cta_sync()",
            ],
            run,
        )

    def shuffle(self, around: Around) -> S:
        """Shuffle or vote within the warp."""
        if self.chance(30):
            condition = self.condition()

            def vote(t: Thread) -> Run:
                bits = yield "warp", 0xFFFFFFFF, condition.of(t)
                ballot = sum(1 << lane for lane, bit in bits.items() if bit)
                t.cells["c3"] = wrap(ballot, "int32")
                return None

            call = f"T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), {condition.text})"
            return S([f'c3 = T.cast({call}, "int32")'], vote)
        value, by = self.expression("int32"), self.choice((1, 2, 3, 5, 7))
        return self._shuffled(value, by, 0xFFFFFFFF)

    def _shuffled(self, value: E, by: int, mask: int) -> S:
        def run(t: Thread) -> Run:
            values = yield "warp", mask, value.of(t)
            t.cells["c3"] = values[t.i % 32 ^ by]
            return None

        call = f"T.cuda.__shfl_xor_sync(T.uint32({mask:#x}), {value.text}, {by}, 32)"
        return S([f"c3 = {call}"], run)

    def halves(self, around: Around) -> S:
        """Shuffle in both arms of a branch, each among the lanes that are there."""
        first, second = (
            self._shuffled(self.expression("int32"), self.choice((1, 2, 3)), mask)
            for mask in (0x0000000F, 0xFFFFFFF0)
        )

        def run(t: Thread) -> Run:
            return (yield from (first if t.i % 32 < 4 else second).run(t))

        lines = ["if i % 32 < 4:", *indented(first.lines), "else:", *indented(second.lines)]
        return S(lines, run)

    def handshake(self, around: Around) -> S:
        """Have one lane of the warp wait for all others."""
        if around.depth or self.boxes == 4:
            return self.exchange(around)
        box, lane, other = self.boxes, self.choice(range(8)), self.choice(range(1, 8))
        self.boxes += 1
        value = self.expression("int32")

        def run(t: Thread) -> Run:
            values = yield "warp", 0xFFFFFFFF, value.of(t)
            if t.i % 32 == lane:
                t.cells["c3"] = values[lane ^ other]
            return None

        bar = f"bars.ptr_to([i // 32 * 4 + {box}])"
        lines = [
            f"if i % 32 == {lane}:",
            f"    T.cuda.mbarrier_wait({bar}, 0)",
            f"    c3 = boxes[{box}, i // 32 * 32 + {lane ^ other}]",
            "else:",
            f"    boxes[{box}, i] = {value.text}",
            f'    T.ptx["mbarrier.arrive.shared::cta.b64"]({bar})',
        ]
        return S(lines, run)

    # ---- the whole

    def kernel(self) -> tuple[str, S]:
        """Make the text of a kernel, and what a thread of it does."""
        head = self.block(Around(), 5)
        tail = self.block(Around(together=False, returns=True), 6)
        last = [
            self.write(where, SLOTS - 1 - number, E(name, type, lambda t, name=name: t.cells[name]))
            for number, (name, type) in enumerate(self.cells.items())
            for where in (("floats",) if type == "float32" else ("integers",))
        ]
        body = sequence([*self.initial, head, tail, *last])
        count = self.threads
        warps = -(-count // 32)
        lines = [
            "from tilewright import simt as T",
            "@T.function",
            "def kernel(",
            f'    Given: T.Tensor(({CTAS}, 5, {count}), "int64"),',
            f'    Integers: T.Tensor(({CTAS}, {SLOTS}, {count}), "int64"),',
            f'    Floats: T.Tensor(({CTAS}, {SLOTS}, {count}), "float32"),',
            "    n: T.int32,",
            "):",
            f"    T.device_entry(launch=T.cuda.LaunchConfig(grid={CTAS}, block={count}))",
            '    i, cta = T.cuda.thread_idx("x"), T.cuda.block_idx("x")',
            '    local = T.alloc_local((4,), "int32", layout="default")',
            f'    shared = T.alloc_shared(({4 * count},), "int32", layout="default", align=16)',
            f'    mail = T.alloc_shared(({count},), "int32", layout="default", align=16)',
            f'    boxes = T.alloc_shared((4, {count}), "int32", layout="default", align=16)',
            f'    bars = T.alloc_shared(({4 * warps},), "uint64", layout="default", align=8)',
            f"    if i < {4 * warps}:",
            f"        arrivals = T.min(32, {count} - i // 4 * 32) - 1",
            "        T.ptx.mbarrier.init.shared.b64(",
            '            bars.ptr_to([i]), T.cast(arrivals, "uint32")',
            "        )",
            "    for q in range(4):",
            "        local[q] = 0",
            "        shared[i * 4 + q] = 0",
            "    T.cuda.cta_sync()",
            *indented(body.lines),
        ]
        return "\n".join(lines) + "\n", body


def _group(e: E) -> str:
    return e.text if e.text.isidentifier() else f"({e.text})"


def _nothing() -> Run:
    return None
    yield


def indented(lines: list[str]) -> list[str]:
    """Move lines to the right."""
    return [f"    {line}" for line in lines]


def sequence(parts: list[S]) -> S:
    """Make one statement of several."""

    def run(t: Thread) -> Run:
        for part in parts:
            signal = yield from part.run(t)
            if signal is not None:
                return signal
        return None

    return S([line for part in parts for line in part.lines], run)


def expected(body: S, given: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Run every thread, and give the results."""
    count = given.shape[2]
    integers = np.zeros((CTAS, SLOTS, count), np.int64)
    floats = np.zeros((CTAS, SLOTS, count), np.float32)
    for cta in range(CTAS):
        threads = [Thread(cta, i, n, given, integers, floats) for i in range(count)]
        runs = {t.i: body.run(t) for t in threads}
        _run_together(runs)
    return integers, floats


def _run_together(runs: dict[int, Run]) -> None:
    answers: dict[int, Any] = dict.fromkeys(runs)
    asked: dict[int, Any] = {}
    while runs:
        for i, answer in answers.items():
            try:
                asked[i] = runs[i].send(answer)
            except StopIteration:
                del runs[i]
                asked.pop(i, None)
        answers = _answers(asked, set(runs))
        assert answers or not runs, "the threads of a random kernel do not meet"
        for i in answers:
            del asked[i]


def _answers(asked: dict[int, Any], alive: set[int]) -> dict[int, Any]:
    if asked and all(request[0] == "sync" for request in asked.values()):
        values = {i: request[1] for i, request in asked.items()}
        return dict.fromkeys(asked, values)
    answers: dict[int, Any] = {}
    for i, request in asked.items():
        if request[0] != "warp":
            continue
        lanes = {each for each in alive if each // 32 == i // 32 and request[1] >> (each % 32) & 1}
        if all(each in asked and asked[each][:2] == request[:2] for each in lanes):
            answers[i] = {each % 32: asked[each][2] for each in lanes}
    return answers

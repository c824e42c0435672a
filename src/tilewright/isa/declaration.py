"""What a declaration of a PTX instruction is, and how one is found by its spelling.

May import `base`. A declaration holds all there is to know of an instruction; the Python
spelling, the inline assembly, the refusal on a wrong target, the tile contract, the simulation
and the documentation are derived from it.

    ldmatrix = declare(
        "ldmatrix", "sync.aligned.m8n8{num}{trans}{space}.b16",
        slots={"num": ("x1", "x2", "x4"), "trans": ("", "trans"), ...}, ...)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.base.dtypes import DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability
from tilewright.isa.mnemonics import WORDS

Role = Literal["in", "out", "inout"]
Access = Literal["", "read", "write", "update"]
Scope = Literal["", "cta", "cluster", "gpu", "sys"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A modifier position: a closed choice of tokens; an empty token means it may be absent."""

    name: str
    choices: tuple[str, ...]

    @property
    def required(self) -> bool:
        """Tell whether one of the tokens must be written."""
        return "" not in self.choices


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an instruction.

    `type` is the PTX type without its dot (`b32`, `f32`, `pred`, …). `count` registers form a
    group, printed in braces when `grouped`. An address accesses `bytes` bytes in `space`,
    aligned to `align`, in each lane of `lanes` (a number of leading lanes). An immediate is one
    of `values`, as is a register that is given a constant. An optional operand may be left out
    by the caller.
    """

    name: str
    kind: Literal["register", "address", "immediate", "predicate"]
    type: str
    role: Role = "in"
    count: int = 1
    grouped: bool = False
    space: Space | None = None
    access: Access = ""
    bytes: int = 0
    align: int = 1
    lanes: int = 32
    values: range | tuple[int, ...] | None = None
    optional: bool = False

    @property
    def dtype(self) -> DType:
        """Give the element type in which meaning sees this operand (uint32 for `b32`).

        Whoever executes an instruction brings inputs to this type, bit by bit, and results
        from it to the type of the place they go to.
        """
        return dtype(accepted_types(self.type)[0])


def register(
    name: str,
    type: str,
    *,
    role: Role = "in",
    count: int = 1,
    grouped: bool = False,
    optional: bool = False,
    values: range | tuple[int, ...] | None = None,
) -> Operand:
    """Declare a register operand, or a group of `count` registers.

    `values` are those that have a meaning: constants are held to them when a kernel is read.
    """
    grouped = grouped or count > 1
    return Operand(name, "register", type, role, count, grouped, values=values, optional=optional)


def predicate(name: str, *, role: Role = "in", optional: bool = False) -> Operand:
    """Declare a predicate operand."""
    return Operand(name, "predicate", "pred", role, optional=optional)


def address(
    name: str,
    space: Space,
    access: Access,
    bytes: int,
    *,
    align: int | None = None,
    lanes: int = 32,
) -> Operand:
    """Declare an address operand: what each lane accesses there, and how it must be aligned."""
    return Operand(
        name,
        "address",
        f"u{space.address_bits}",
        space=space,
        access=access,
        bytes=bytes,
        align=bytes if align is None else align,
        lanes=lanes,
    )


def immediate(
    name: str, type: str, values: range | tuple[int, ...] | None = None, *, optional: bool = False
) -> Operand:
    """Declare an operand that must be a constant."""
    return Operand(name, "immediate", type, values=values, optional=optional)


@dataclass(frozen=True, slots=True)
class Order:
    """How an instruction stands in the memory order (PTX ISA, "Memory Consistency Model").

    `proxy` is the proxy of its accesses; `acquires` and `releases` at `scope`. A `fence` has no
    accesses: "memory" orders all of the thread's, "proxy" the generic ones against those of
    `proxy` in `spaces` (all, if empty), "mbarrier_init" its `mbarrier.init`.
    """

    proxy: Literal["generic", "async", "tensormap", "none"] = "generic"
    acquires: bool = False
    releases: bool = False
    scope: Scope = ""
    fence: Literal["", "memory", "proxy", "mbarrier_init"] = ""
    spaces: tuple[Space, ...] = ()


@dataclass(frozen=True, slots=True)
class Time:
    """When an instruction's effects land.

    Synchronous when `agent` is empty. Else the named agent carries it out later, and
    `completes` says what tells: an mbarrier operand, or the kind of group it belongs to. The
    operations of the agent "tensor" land in the order in which their thread issued them. Those
    of the groups "tmem_load" and "tmem_store" belong to their warp: their registers are read or
    written later; a synchronous instruction that `completes` such a group waits for them.
    Those of "bulk_group" and "cp_async_group" belong to the thread that issued them, which
    commits them to groups and waits for the groups (`Machine.commit_group`). What the agent
    "copy" does to an mbarrier lands after what its thread gave that agent before.
    """

    agent: str = ""
    completes: Literal[
        "", "mbarrier", "bulk_group", "cp_async_group", "tmem_load", "tmem_store"
    ] = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """How an instruction may block its path.

    `arrive(machine, form, *operands)` runs once and returns state to keep; `poll(machine, form,
    *operands, *state)` runs each time the path is scheduled, until it is true; `awaits(machine,
    form, *operands, *state)` names what is waited for, as a kind and a number, and `detail`,
    called alike, gives a number more (by default the last operand). If `gives_up`, the
    scheduler may let the instruction return although the poll is false; kind "time" waits for
    nothing but that.
    """

    kind: Literal["mbarrier", "barrier", "cluster", "group", "columns", "warp", "time"]
    poll: Callable[..., Any]
    awaits: Callable[..., Any]
    arrive: Callable[..., Sequence[Any]] | None = None
    detail: Callable[..., Any] | None = None
    gives_up: bool = False


@dataclass(frozen=True, slots=True)
class Fragment:
    """The register-fragment layout of a warp-level operand.

    `owner(row, column)` gives the lane and the register (counted in 32-bit words, or in
    elements where `packed` is 1) that hold an element of a `rows` × `columns` operand whose
    elements are `bits` wide; `packed` elements share a register, in ascending columns.
    `owner` works on NumPy arrays of coordinates. PTX ISA, the figures of each instruction.
    """

    rows: int
    columns: int
    bits: int
    owner: Callable[[Any, Any], tuple[Any, Any]]
    packed: int = 1


@dataclass(frozen=True, slots=True)
class TileOperand:
    """The canonical tile of an operand of `T.cuda.tile.apply`.

    `atom` is the trailing shape that one issue takes, in elements of `bits` bits; `repeats`
    names the repeat axes that stand before it ("m", "n", "k" or "*" for any shared axes).
    `owner(*atom coordinates)` gives (lane, register) for registers held by a warp, `None`
    for registers held by one thread; a memory operand's trailing `contiguous` elements must be
    consecutive, and their address aligned to `align` bytes.
    """

    operand: str
    spaces: tuple[Space, ...]
    atom: tuple[int, ...]
    bits: int
    repeats: tuple[str, ...] = ("*",)
    owner: Callable[..., tuple[Any, Any]] | None = None
    contiguous: int = 1
    align: int = 1
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class TileContract:
    """How an instruction is applied to tiles.

    `issuer` is who issues one instance: a "thread", or all lanes of a "warp". `operands` are
    the tile operands in call order. `lane_address(lane)` maps a lane to the atom coordinate
    whose address it supplies, for instructions in which lanes address parts of the atom.
    `chained` names an operand whose value comes from the output `chain_to` at every step of
    the innermost repeat axis "k" but the first.
    """

    issuer: Literal["thread", "warp"]
    operands: tuple[TileOperand, ...]
    lane_address: Callable[[Any], tuple[Any, ...]] | None = None
    chained: str | None = None
    chain_to: str | None = None


@dataclass(frozen=True, eq=False)
class Declaration:
    """All there is to know of a PTX instruction; see `declare`."""

    family: str
    parts: tuple[str | Slot, ...]
    summary: str
    section: str
    targets: Callable[[Form], Availability]
    operands: Callable[[Form], tuple[Operand, ...]]
    compute: Callable[..., Any] | None
    legal: Callable[[Form], str | None]
    lanes: Literal["any", "one", "warp", "warpgroup"]
    aligned: bool
    excuses_exited: bool
    result: Literal["as operands", "uniform", "lanes"]
    order: Callable[[Form], Order]
    time: Callable[[Form], Time]
    wait: Wait | None
    lands: Callable[..., Any] | None
    reads: Callable[..., Any] | None
    tile: Callable[[Form], TileContract | None] | None
    asm: str | None
    exact: bool
    volatile: bool

    @property
    def slots(self) -> tuple[Slot, ...]:
        """List the open modifier positions, in order of writing."""
        return tuple(part for part in self.parts if isinstance(part, Slot))

    def forms(self) -> Iterable[Form]:
        """Enumerate every legal combination of modifiers."""
        chosen: list[dict[str, str]] = [{}]
        for slot in self.slots:
            chosen = [{**each, slot.name: token} for each in chosen for token in slot.choices]
        for each in chosen:
            form = Form(self, tuple(each.items()))
            if self.legal(form) is None:
                yield form


@dataclass(frozen=True)
class Form:
    """An instruction with all its modifiers chosen: what a call issues.

    `form.num` (or `form["num"]`) is the token chosen for the slot `num`, empty if left out.
    """

    declaration: Declaration
    modifiers: tuple[tuple[str, str], ...]
    _tokens: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tokens", dict(self.modifiers))

    def __getitem__(self, slot: str) -> str:
        return self._tokens[slot]

    def __getattr__(self, slot: str) -> str:
        tokens = self.__dict__.get("_tokens", {})
        if slot in tokens:
            return tokens[slot]
        raise AttributeError(slot)

    @property
    def text(self) -> str:
        """Spell the instruction as PTX does, such as `ldmatrix.sync.aligned.m8n8.x4.shared.b16`."""
        tokens = [p if isinstance(p, str) else self[p.name] for p in self.declaration.parts]
        return ".".join([self.declaration.family, *(token for token in tokens if token)])

    @property
    def operands(self) -> tuple[Operand, ...]:
        """List the operands of this form, in PTX order."""
        return self.declaration.operands(self)

    @property
    def targets(self) -> Availability:
        """Say which targets have this form."""
        return self.declaration.targets(self)

    @property
    def order(self) -> Order:
        """Say how this form stands in the memory order."""
        return self.declaration.order(self)

    @property
    def time(self) -> Time:
        """Say when this form's effects land."""
        return self.declaration.time(self)

    @property
    def tile(self) -> TileContract | None:
        """Give the tile contract of this form, if it has one."""
        return None if self.declaration.tile is None else self.declaration.tile(self)


# ---------------------------------------------------------------------------- declaring

_SLOT = re.compile(r"\{(\w+)\}")
_registry: dict[str, list[Declaration]] = {}


def _constant(value: Any) -> Callable[[Form], Any]:
    return value if callable(value) else lambda form: value


def _listing(
    operands: Sequence[Operand] | Callable[[Form], Sequence[Operand]],
) -> Callable[[Form], tuple[Operand, ...]]:
    if callable(operands):
        return lambda form: tuple(operands(form))
    fixed = tuple(operands)
    return lambda form: fixed


def declare(
    family: str,
    syntax: str,
    *,
    summary: str,
    section: str,
    targets: Availability | Callable[[Form], Availability],
    operands: Sequence[Operand] | Callable[[Form], Sequence[Operand]] = (),
    slots: dict[str, tuple[str, ...]] | None = None,
    compute: Callable[..., Any] | None = None,
    legal: Callable[[Form], str | None] = lambda form: None,
    lanes: Literal["any", "one", "warp", "warpgroup"] = "any",
    aligned: bool = False,
    excuses_exited: bool = False,
    result: Literal["as operands", "uniform", "lanes"] = "as operands",
    order: Order | Callable[[Form], Order] = Order(),
    time: Time | Callable[[Form], Time] = Time(),
    wait: Wait | None = None,
    lands: Callable[..., Any] | None = None,
    reads: Callable[..., Any] | None = None,
    tile: Callable[[Form], TileContract | None] | None = None,
    asm: str | None = None,
    exact: bool = True,
    volatile: bool = True,
) -> Declaration:
    """Declare a PTX instruction and enter it in the table.

    `family` is the mnemonic as PTX writes it (`elect.sync`); `syntax` the modifiers after it,
    each a literal token or a `{slot}` whose tokens `slots` lists, "" meaning it may be absent.
    `legal(form)` gives the error text of a forbidden combination. `compute(machine, form,
    *operands)` is the meaning: it is given the input operands ("in" and "inout", register
    groups flattened, an optional operand that was left out as nothing), each as
    `Operand.dtype`, and returns the output registers in order, as a sequence, or `None` if there
    are none; `lands(machine, form, *operands)` is what the agent does later. An operation whose
    sources may be free before its results exist has `reads(machine, form, *operands)`: the
    address and the size of the run of shared memory that it reads. `asm` overrides the
    operand list, as in `"{d}, [{map}, {coords}], [{mbar}]"`.
    An instruction of a whole warp `excuses_exited` lanes if it waits only for those that are left;
    one with a member mask always does.
    `exact` says that the meaning is confirmed; `volatile` is false for pure register work.
    """
    chosen = slots or {}
    parts: list[str | Slot] = []
    for token in filter(None, re.split(r"(\{\w+\})|\.", syntax)):
        match = _SLOT.match(token)
        parts.append(Slot(match[1], chosen[match[1]]) if match else token)
    listed = _listing(operands)
    declaration = Declaration(
        family,
        tuple(parts),
        summary,
        section,
        _constant(targets),
        listed,
        compute,
        legal,
        lanes,
        aligned,
        excuses_exited,
        result,
        _constant(order),
        _constant(time),
        wait,
        lands,
        reads,
        tile,
        asm,
        exact,
        volatile,
    )
    _registry.setdefault(family, []).append(declaration)
    return declaration


# ---------------------------------------------------------------------------- finding


def families() -> dict[str, list[Declaration]]:
    """Give every declaration, grouped by the family that spells it."""
    return _registry


def family_of_attribute(name: str) -> str | None:
    """Find the family that an attribute of `T.ptx` spells (`elect_sync` for `elect.sync`)."""
    by_attribute = {family.replace(".", "_"): family for family in _registry}
    return by_attribute.get(name.removesuffix("_")) or by_attribute.get(name)


def unknown_family(name: str, location: Location | None = None) -> FrontendError:
    """Describe an instruction that is not declared here: not supported, or not in the PTX ISA."""
    word = re.split(r"[._]", name, maxsplit=1)[0]
    if word in WORDS:
        return FrontendError(
            f"the instruction {word!r} is not supported yet",
            code="not-supported",
            location=location,
        )
    known = [family.replace(".", "_") for family in _registry]
    close = difflib.get_close_matches(word, [*WORDS, *known], n=1)
    return FrontendError(
        f"there is no instruction {name!r}",
        code="unknown-name",
        location=location,
        expected="one of " + ", ".join(sorted(_registry)),
        hint=f"did you mean {close[0]}?" if close else None,
    )


def token_of_attribute(name: str) -> str:
    """Read a modifier token out of its attribute spelling (`async_`, `shared__cta`)."""
    return name.removesuffix("_").replace("__colon__", ":").replace("__", "::")


def attribute_of_token(token: str) -> str:
    """Spell a modifier token as an attribute."""
    name = token.replace("::", "__").replace(":", "__colon__")
    return name + "_" if name in ("async", "global") else name


@dataclass(frozen=True)
class Spelling:
    """An instruction as far as a program has spelled it: a family and tokens, in any order."""

    family: str
    tokens: tuple[str, ...] = ()
    location: Location | None = field(default=None, compare=False)

    def extend(self, token: str, location: Location | None = None) -> Spelling:
        """Add a modifier.

        Raises `FrontendError` (`unknown-modifier`), listing what is legal here, if no
        declaration of the family takes it.
        """
        longer = Spelling(self.family, (*self.tokens, token), location or self.location)
        if not longer._fillings():
            close = difflib.get_close_matches(token, self.open_tokens(), n=1)
            raise FrontendError(
                f"{self.text} has no modifier .{token}",
                code="unknown-modifier",
                location=longer.location,
                expected=", ".join(f".{each}" for each in self.open_tokens()) or "no further one",
                found=f".{token}",
                hint=f"did you mean .{close[0]}?" if close else None,
            )
        return longer

    @property
    def text(self) -> str:
        """Spell what there is so far."""
        return ".".join((self.family, *self.tokens))

    def open_tokens(self) -> tuple[str, ...]:
        """List every token that may be added."""
        found: dict[str, None] = {}
        for declaration, filled in self._fillings():
            for index, part in enumerate(declaration.parts):
                if index not in filled:
                    tokens = (part,) if isinstance(part, str) else part.choices
                    found.update(dict.fromkeys(token for token in tokens if token))
        return tuple(found)

    def _fillings(self) -> list[tuple[Declaration, dict[int, str]]]:
        found: list[tuple[Declaration, dict[int, str]]] = []
        for declaration in _registry.get(self.family, ()):
            filled = _fill(declaration.parts, self.tokens)
            if filled is not None:
                found.append((declaration, filled))
        return found

    def forms(self) -> tuple[Form, ...]:
        """List the complete forms that this spelling may mean, before operands decide.

        Raises `FrontendError` if modifiers are missing (`incomplete-instruction`) or their
        combination is forbidden (`unknown-modifier`).
        """
        complete: list[Form] = []
        missing: list[str] = []
        illegal: list[str] = []
        for declaration, filled in self._fillings():
            absent = _absent(declaration.parts, filled)
            if absent:
                missing.append(" ".join(absent))
                continue
            form = _form(declaration, filled)
            reason = declaration.legal(form)
            illegal.append(reason) if reason else complete.append(form)
        if complete:
            return tuple(complete)
        if illegal:
            raise FrontendError(
                f"{self.text} is not an instruction: {illegal[0]}",
                code="unknown-modifier",
                location=self.location,
            )
        raise FrontendError(
            f"{self.text} is not complete",
            code="incomplete-instruction",
            location=self.location,
            expected="; or ".join(dict.fromkeys(missing)),
        )


def spell(text: str, location: Location | None = None) -> Spelling:
    """Read PTX text such as `ldmatrix.sync.aligned.m8n8.x4.shared.b16`.

    Raises `FrontendError` if it does not begin with a family or has an unknown modifier.
    """
    names = sorted(_registry, key=len, reverse=True)
    candidates = [name for name in names if text == name or text.startswith(name + ".")]
    if not candidates:
        raise unknown_family(text, location)
    failure: FrontendError | None = None
    for family in candidates:
        spelling = Spelling(family, (), location)
        try:
            for token in filter(None, text[len(family) :].split(".")):
                spelling = spelling.extend(token)
        except FrontendError as error:
            failure = failure or error
            continue
        return spelling
    assert failure is not None
    raise failure


def _fill(parts: Sequence[str | Slot], tokens: Sequence[str]) -> dict[int, str] | None:
    """Assign each token to the first free part that takes it; `None` if one fits nowhere."""
    filled: dict[int, str] = {}
    for token in tokens:
        for index, part in enumerate(parts):
            taken = part == token if isinstance(part, str) else token in part.choices
            if taken and index not in filled:
                filled[index] = token
                break
        else:
            return None
    return filled


def _absent(parts: Sequence[str | Slot], filled: dict[int, str]) -> list[str]:
    absent: list[str] = []
    for index, part in enumerate(parts):
        if index in filled:
            continue
        if isinstance(part, str):
            absent.append(f".{part}")
        elif part.required:
            absent.append("|".join(f".{choice}" for choice in part.choices))
    return absent


def _form(declaration: Declaration, filled: dict[int, str]) -> Form:
    chosen = [
        (part.name, filled.get(index, ""))
        for index, part in enumerate(declaration.parts)
        if isinstance(part, Slot)
    ]
    return Form(declaration, tuple(chosen))


# ---------------------------------------------------------------------------- PTX types

# PTX type: the element types that an operand of it accepts, the first being its own.
_REGISTER_TYPES: dict[str, tuple[str, ...]] = {
    "b8": ("uint8", "int8", "bool"),
    "b16": ("uint16", "int16", "float16", "bfloat16"),
    "b32": ("uint32", "int32", "float32", "float16x2", "bfloat16x2"),
    "b64": ("uint64", "int64", "float64", "float32x2"),
    "b128": ("uint128",),
    "u8": ("uint8",),
    "u16": ("uint16",),
    "u32": ("uint32",),
    "u64": ("uint64",),
    "s8": ("int8",),
    "s16": ("int16",),
    "s32": ("int32",),
    "s64": ("int64",),
    "f16": ("float16",),
    "bf16": ("bfloat16",),
    "f16x2": ("uint32", "float16x2"),
    "bf16x2": ("uint32", "bfloat16x2"),
    "f32": ("float32",),
    "f64": ("float64",),
    "pred": ("bool", "uint32", "int32"),
}


def accepted_types(type: str) -> tuple[str, ...]:
    """List the element types that an operand of a PTX type accepts, its own first."""
    return _REGISTER_TYPES[type]


def accepts(type: str, dtype: DType) -> bool:
    """Tell whether a register of that element type may be an operand of that PTX type.

    Bit-size types take anything of their width, typed ones exactly their own.
    """
    if type.startswith("b") and type[1:].isdigit():
        return dtype.bits * dtype.lanes == int(type[1:])
    return dtype.name in _REGISTER_TYPES[type]

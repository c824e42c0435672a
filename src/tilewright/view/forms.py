"""What is declared of instructions, as tables: their forms, targets, operands and meaning.

May import `base`, `isa` and the rest of this folder.

    tables = instruction_tables("mma*f16*")
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from tilewright.base.errors import LaunchError
from tilewright.base.spaces import Space
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Slot,
    families,
    token_of_attribute,
)
from tilewright.isa.mnemonics import WORDS
from tilewright.view.tables import Table

_LISTED = 40  # forms of an instruction that are listed
_WHO = {
    "any": "each thread by itself",
    "one": "one thread",
    "warp": "the threads of a warp together",
    "warpgroup": "the threads of a warpgroup together",
}


def instruction_tables(pattern: str | None) -> Iterator[Table]:
    """Describe the instructions that a pattern matches, form by form; without one, list them all.

    A pattern is matched against the names of forms, as a shell matches names of files; one
    without `*`, `?` and `[` matches every name that it is a part of. It may be spelled as PTX
    does or as programs do. Raises `LaunchError` (`bad-option`) if it matches none.
    """
    text = "" if pattern is None else _as_ptx(pattern)
    if not text:
        columns = ("instruction", "meaning", "targets", "what it does")
        yield Table("", columns, [_summary(each) for each in _declarations()])
        return
    found = False
    for declaration, forms in _matching(text):
        found = True
        yield from _described(declaration, forms)
    if not found:
        raise _refusal(str(pattern), text)


# How a program begins to name an instruction, and ends if it quotes the text.
_BEGINNING = re.compile(r"""^(T\.)?ptx(\.|\[["']?|$)""")
_END = re.compile(r"""["']?\]?(\(.*)?$""")


def _as_ptx(pattern: str) -> str:
    """Spell a pattern as PTX does, if it is spelled as attributes of `T.ptx`."""
    text = _END.sub("", _BEGINNING.sub("", pattern.strip())) if "ptx" in pattern else pattern
    for family in families():
        if "." in family:
            text = text.replace(family.replace(".", "_"), family)
    # `async_` and `global_`; a star may follow.
    text = re.sub(r"(?<=[a-z])_(?=$|[.*?])", "", text)
    return ".".join(map(token_of_attribute, text.split(".")))


def _refusal(pattern: str, text: str) -> LaunchError:
    """Refuse a pattern; suggest one with the same words in this order, or a name that is close."""
    words: list[str] = re.findall(r"\w+", text) or [text]
    known = {family.partition(".")[0] for family in families()}
    wide = f"*{'*'.join(words)}*"
    hint = "`isa` alone lists them all"
    if len(words) > 1 and any(True for _ in _matching(wide)):
        hint = f"did you mean '{wide}'?"
    elif words[0] in WORDS and words[0] not in known:
        hint = f"{words[0]} is an instruction of PTX that is not supported yet"
    elif words[0] not in known:
        close = difflib.get_close_matches(words[0], known, 1)
        hint = f"did you mean {close[0]}?" if close else hint
    return LaunchError(f"no instruction is called {pattern!r}", code="bad-option", hint=hint)


def _declarations() -> list[Declaration]:
    return [each for group in families().values() for each in group]


def _matching(pattern: str) -> Iterator[tuple[Declaration, list[Form]]]:
    """List the forms that a pattern matches, by their declarations."""
    matches = _matcher(pattern)
    for declaration in _possible(_declarations(), pattern):
        forms = [form for form in declaration.forms() if matches(form.text)]
        if forms:
            yield declaration, forms


def _matcher(pattern: str) -> Callable[[str], bool]:
    if any(sign in pattern for sign in "*?["):
        return lambda name: fnmatchcase(name, pattern)
    return lambda name: pattern in name


def _possible(declarations: Iterable[Declaration], pattern: str) -> Iterator[Declaration]:
    """Pass over declarations of which no form can match: they have many thousand forms."""
    pieces = [] if "[" in pattern else re.split(r"[.*?]", pattern)
    for declaration in declarations:
        tokens = declaration.family.split(".")
        for part in declaration.parts:
            tokens += (part,) if isinstance(part, str) else part.choices
        if all(any(piece in token for token in tokens) for piece in pieces):
            yield declaration


def _summary(declaration: Declaration) -> tuple[str, ...]:
    targets = _targets(declaration.forms())
    return _spelled(declaration), _meaning(declaration), "; ".join(targets), declaration.summary


def _targets(forms: Iterable[Form]) -> list[str]:
    return list(dict.fromkeys(str(form.targets) for form in forms))


def _meaning(declaration: Declaration) -> str:
    return "exact" if declaration.exact else "not confirmed"


def _spelled(declaration: Declaration) -> str:
    """Spell an instruction with its open modifiers in braces."""
    parts = [each if isinstance(each, str) else f"{{{each.name}}}" for each in declaration.parts]
    return ".".join([declaration.family, *parts])


def _described(declaration: Declaration, forms: Sequence[Form]) -> Iterator[Table]:
    together = ", which must be converged" if declaration.aligned else ""
    targets = _targets(forms)
    rows = [
        ("what it does", declaration.summary),
        ("PTX ISA", declaration.section),
        ("executed by", _WHO[declaration.lanes] + together),
        ("meaning", _meaning(declaration)),
        ("targets", targets[0] if len(targets) == 1 else "by form, see below"),
        *((f"{{{slot.name}}}", _choices(slot)) for slot in declaration.slots),
        *(("operands", text) for text in _distinct(_operands(form) for form in forms)),
    ]
    yield Table(_spelled(declaration), ("", ""), _named_once(rows))
    shown = [""] * len(forms) if len(targets) == 1 else [str(form.targets) for form in forms]
    listed = [(form.text, where) for form, where in zip(forms, shown, strict=True)][:_LISTED]
    if len(forms) > _LISTED:
        listed.append((f"… and {len(forms) - _LISTED} more: a longer pattern shows them", ""))
    yield Table(f"forms: {len(forms)}", ("", ""), listed)


def _named_once(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out the names of rows that go on with what the row before them says."""
    named: list[tuple[str, str]] = []
    last = ""
    for name, text in rows:
        named.append(("" if name == last else name, text))
        last = name
    return named


def _choices(slot: Slot) -> str:
    tokens = " ".join(f".{each}" for each in slot.choices if each)
    return tokens if slot.required else f"{tokens} or nothing"


def _distinct(texts: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(texts))
    if len(found) <= 4:
        return found
    return [*found[:3], f"… and {len(found) - 3} more, by the modifiers"]


def _operands(form: Form) -> str:
    return "; ".join(map(_operand, form.operands)) or "none"


def _operand(operand: Operand) -> str:
    """Describe an operand, such as `d: out, 4 registers .b32`."""
    text = f"{operand.name}: {_kind(operand)}"
    if operand.optional:
        text += ", optional"
    return text


def _kind(operand: Operand) -> str:
    if operand.kind == "address":
        space = operand.space or Space.GENERIC
        place = "Tensor Memory" if space is Space.TMEM else f"{space.value} memory"
        size = f" {operand.bytes} bytes" if operand.bytes else ""
        return f"address in {place}" + (operand.access and f", {operand.access}s{size}")
    if operand.kind == "immediate":
        return f"constant .{operand.type}"
    if operand.kind == "predicate":
        return f"{operand.role}, predicate"
    registers = f"{operand.count} registers" if operand.count > 1 else "register"
    return f"{operand.role}, {registers} .{operand.type}"

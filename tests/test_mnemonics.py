"""In `src/` the name of a PTX instruction stands only in `isa/`, as the table says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tilewright
from tilewright.isa.declaration import Slot, families

PACKAGE = Path(tilewright.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "isa" not in path.parts]

# A family of one word is also a word (`add`, `fence`): alone it is no instruction, before a
# modifier of its own it is. Families of several words (`elect.sync`) are none but that.
_TOKENS: dict[str, set[str]] = {}
for _family, _declarations in families().items():
    for _declaration in _declarations:
        for _part in _declaration.parts:
            _TOKENS.setdefault(_family, set()).update(
                _part.choices if isinstance(_part, Slot) else (_part,)
            )
_SPELLED = re.compile(
    r"(?<![\w.%])("
    + "|".join(re.escape(family) for family in sorted(_TOKENS, key=len, reverse=True))
    + r")(\.[\w:]+)?(?![\w])"
)


def mnemonics(text: str) -> list[str]:
    """List the instructions that a text spells."""
    return [
        match[0]
        for match in _SPELLED.finditer(text)
        if "." in match[1] or (match[2] and match[2][1:] in _TOKENS[match[1]])
    ]


def strings(tree: ast.Module) -> list[ast.Constant]:
    """List the strings of a file that are not documentation."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_mnemonic_outside_isa(path: Path) -> None:
    for node in strings(ast.parse(path.read_text())):
        assert isinstance(node.value, str)
        found = mnemonics(node.value)
        assert not found, f"{path}:{node.lineno}: {found[0]}: refer to its declaration in isa/"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", ["ldmatrix.sync"]),
        ("bar.sync 0;", ["bar.sync"]),
        ("wait with fence.proxy", ["fence.proxy"]),
        ("add", []),
        ("the fence. Then", []),
        ("%clock.lo", []),
    ],
)
def test_the_test_finds_instructions(text: str, found: list[str]) -> None:
    assert mnemonics(text) == found

"""A folder imports only from folders above it; nothing is imported inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
# Lowest first. The files of a folder may import one another.
ORDER = (
    *("base", "layout", "isa", "ir", "frontend", "passes", "codegen", "sim", "runtime", "view"),
    *("compat", "lang", "simt", "tile", "driver", "jit", "testing", "cli", "__main__"),
)
APART = {"codegen": "sim", "sim": "codegen", "simt": "tile", "tile": "simt"}
FILES = sorted(PACKAGE.rglob("*.py"))
# The only one that imports inside functions: optional packages, when they are needed.
LAZY = PACKAGE / "base" / "lazy.py"
# The only user of NVIDIA's packages.
RUNTIME = "runtime"


def place(path: Path) -> str:
    """Give the folder, or the file of the top level, that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[str, int]]:
    """List the modules that a file imports, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            assert node.module
            if node.module == "tilewright":
                yield from ((f"tilewright.{a.name}", node.lineno) for a in node.names)
            else:
                yield node.module, node.lineno


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_imports_go_down(path: Path) -> None:
    own = place(path)
    if own == "__init__":
        return
    assert own in ORDER, f"{own} has no place in the order"
    for module, line in imports(ast.parse(path.read_text()), path):
        root, _, rest = module.partition(".")
        if root != "tilewright":
            continue
        other = rest.partition(".")[0]
        if other == "__version__" and own == "cli":
            continue  # the package's own, which only the command line stands above
        where = f"{path}:{line}: {module}"
        assert other in ORDER, f"{where}: import from the folder that has it"
        assert ORDER.index(other) <= ORDER.index(own), f"{where} stands above {own}"
        assert APART.get(own) != other, f"{where}: {own} and {other} do not know one another"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_is_imported_inside_functions(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                assert not isinstance(inner, ast.Import | ast.ImportFrom), (
                    f"{path}:{inner.lineno}: import at the top, or through base/lazy.py"
                )


@pytest.mark.parametrize("path", FILES, ids=named)
def test_optional_packages_are_imported_lazily(path: Path) -> None:
    for module, line in imports(ast.parse(path.read_text()), path):
        root = module.partition(".")[0]
        assert root not in ("torch", "cuda", "rich"), f"{path}:{line}: use base/lazy.py"


def test_only_the_runtime_names_the_packages_of_cuda() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith("cuda.bindings") or place(path) == RUNTIME, path

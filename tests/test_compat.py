"""Import names of other packages that mean this one, in a user's own process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright
from tilewright import compat, layout, simt, tile
from tilewright.base.errors import LaunchError, TargetError
from tilewright.compat.names import ALIASES, MODULES


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.uninstall()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package of the name importable."""
    folder = tmp_path / "tvm_tirx"
    folder.mkdir()
    (folder / "__init__.py").write_text("REAL = True")
    (folder / "own.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize("name", [*MODULES, *ALIASES])
def test_every_module_of_the_table_imports(name: str) -> None:
    compat.install()
    importlib.import_module(name)


def test_names_are_this_packages_own() -> None:
    compat.install()
    script = importlib.import_module("tvm_tirx.script")
    package = importlib.import_module("tvm_tirx")
    assert script.tirx is simt
    assert package.compile is package.tirx.compile is tilewright.compile
    assert package.tirx.layout.TileLayout is layout.TileLayout
    assert package.backend.cuda.axis.laneid is layout.laneid
    assert package.backend.cuda.layout.mma_shared_layout is layout.mma_shared_layout
    assert importlib.import_module("tvm_tirx.script.tirx") is simt


def test_a_target_is_a_checked_request() -> None:
    compat.install()
    make = importlib.import_module("tvm_tirx.target").Target
    assert make("nvidia/nvidia-h100") == "nvidia/nvidia-h100"
    with pytest.raises(TargetError):
        make("vulkan")


def test_a_target_holds_inside_of_its_with() -> None:
    compat.install()
    make = importlib.import_module("tvm.target").Target

    @tile.prim_func
    def kernel(A: tile.Tensor((32,), "float32")):
        with tile.Kernel(1, threads=32):
            tile.clear(A)

    with make("cuda -arch=sm_80"):
        assert tilewright.compile(kernel, backend="sim").target.arch == "sm_80"
        with make({"kind": "cuda", "arch": "sm_100a"}) as inner:
            assert make.current() == inner
            assert tilewright.compile(kernel, backend="sim").target.arch == "sm_100a"
        assert tilewright.compile(kernel, "sm_90a", backend="sim").target.arch == "sm_90a"
    assert make.current() is None


def test_names_that_are_missing_are_ordinary_import_errors() -> None:
    compat.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tvm_tirx.relay")
    with pytest.raises(AttributeError, match="Tilewright has no 'relay'"):
        _ = importlib.import_module("tvm_tirx").relay


def test_uninstall_restores_the_import_system() -> None:
    before = list(sys.meta_path), dict(sys.modules)
    compat.install()
    importlib.import_module("tvm_tirx.tirx.layout")
    compat.uninstall()
    assert sys.meta_path == before[0]
    assert {name for name in sys.modules if name.startswith("tvm_tirx")} == set()
    compat.uninstall()


def test_installing_twice_is_installing_once() -> None:
    finders = len(sys.meta_path)
    assert compat.install() == compat.install() == ("tvm_tirx", "tilelang", "tvm")
    compat.uninstall()
    assert len(sys.meta_path) == finders and compat.installed() == ()


def test_an_importable_package_is_not_replaced_unasked(real: Path) -> None:
    before = list(sys.meta_path)
    with pytest.raises(LaunchError) as caught:
        compat.install()
    assert caught.value.code == "name-taken" and sys.meta_path == before


def test_an_imported_package_comes_back(real: Path) -> None:
    module = importlib.import_module("tvm_tirx.own")
    with pytest.raises(LaunchError, match="imported"):
        compat.install()
    compat.install(replace=True)
    assert not hasattr(importlib.import_module("tvm_tirx"), "REAL")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tvm_tirx.own")
    compat.uninstall()
    assert importlib.import_module("tvm_tirx.own") is module
    for name in ("tvm_tirx", "tvm_tirx.own"):
        del sys.modules[name]


def test_a_name_can_be_kept(real: Path) -> None:
    assert compat.install(keep=("tvm_tirx",)) == ("tilelang", "tvm")
    compat.uninstall()
    assert compat.install(keep="tvm_tirx") == ("tilelang", "tvm")
    assert importlib.import_module("tvm_tirx").REAL
    del sys.modules["tvm_tirx"]


def test_only_names_that_are_substituted_can_be_kept() -> None:
    with pytest.raises(LaunchError) as caught:
        compat.install(keep=("numpy",))
    with pytest.raises(LaunchError, match="'torch' is not a name"):
        compat.install(keep="torch")
    assert caught.value.code == "bad-option"

"""What users install: the wheel and the source distribution hold what they should."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The modules, and the data that the simulator reads.
MODULES = {
    str(path.relative_to(ROOT / "src"))
    for pattern in ("*.py", "*.npz")
    for path in (ROOT / "src").rglob(pattern)
    if path.is_file()
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy, since building leaves files in the tree."""
    copy = tmp_path_factory.mktemp("package")
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    # `-P`, for a folder called `build` in the working directory is not the package.
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


def test_the_wheel_has_every_module_and_the_marker_of_types(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= MODULES and "tilewright/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_distribution_can_be_built_again(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names >= {f"src/{module}" for module in MODULES}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "src/tilewright/py.typed"}

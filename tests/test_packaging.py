"""Tests of what pyproject.toml says (dependencies, groups, version), and of the wheel that is built from it."""

import ast
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

import opdkit
from opdkit.cli import app

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def group(name: str) -> set[str]:
    """Return the requirements of a dependency group and of the groups that it includes."""
    found = set()
    for entry in PYPROJECT["dependency-groups"][name]:
        found |= {entry} if isinstance(entry, str) else group(entry["include-group"])
    return found


def imported(folder: Path) -> set[str]:
    """Return the packages, by the name of their distribution, that modules below a folder import anywhere."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return {canonicalize_name(name) for name in found - sys.stdlib_module_names - {"opdkit"}}


def test_every_import_is_declared_and_every_dependency_is_imported() -> None:
    """A package that only another dependency installs may be missing with that dependency's next version."""
    extras = {extra: names(PROJECT["optional-dependencies"][extra]) for extra in ("lora", "pii")
              if extra in PROJECT["optional-dependencies"]}  # fmt: skip
    needed, declared = imported(ROOT / "opdkit"), names(PROJECT["dependencies"])
    assert needed - declared == set().union(*extras.values()) & needed, "imported, and not declared"
    assert declared - needed == set(), "declared, and never imported"


def test_every_dependency_has_a_lower_bound() -> None:
    assert [text for text in PROJECT["dependencies"] if not Requirement(text).specifier] == []


def test_the_extra_is_the_groups() -> None:
    """`pip install -e '.[test]'` works with every pip, but `pip install --group dev` only since 25.1."""
    assert set(PROJECT["optional-dependencies"]["test"]) == group("dev")
    assert group("docs") < group("test")
    assert group("test") | group("lint") == group("dev")


def test_the_version_is_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"] == {"path": "opdkit/version.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", opdkit.__version__)
    assigned = [path.name for path in (ROOT / "opdkit").rglob("*.py")
                if f'"{opdkit.__version__}"' in path.read_text(encoding="utf-8")]  # fmt: skip
    assert assigned == ["version.py"]


@pytest.mark.slow
def test_a_wheel_brings_the_samples(tmp_path: Path) -> None:
    """The wheel is built and installed into an environment of its own, which then writes out the samples."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling cannot be fetched here")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    members = zipfile.ZipFile(wheel).namelist()
    assert {"opdkit/sample_data/model/model.safetensors", "opdkit/py.typed", "opdkit/options.pyi"} <= set(members)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "opdkit").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= set(members)
    assert not [name for name in members if "__pycache__" in name or name.startswith("tests")]
    home = tmp_path / "venv"
    venv.create(home, system_site_packages=False, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    command = [str(home / "bin" / "python"), "-m", "opdkit", "demo", "--samples", "sample_data"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    written = {path.relative_to(tmp_path / "sample_data") for path in (tmp_path / "sample_data").rglob("*")}
    expected = {path.relative_to(ROOT / "sample_data") for path in (ROOT / "sample_data").rglob("*")}
    assert written == {path for path in expected if "__pycache__" not in path.parts}


def test_the_samples_are_written_once_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "samples"
    done = CliRunner().invoke(app, ["demo", "--samples", str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} >= {"logs", "model", "prompts.jsonl", "README.md"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["samples"]
    done = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), str(folder / "logs"), "--limit", "3"])
    assert done.exit_code == 0, done.output
    (folder / "mine").write_text("x")
    for there in (folder, folder / "mine"):
        refused = CliRunner().invoke(app, ["demo", "--samples", str(there)])
        assert refused.exit_code == 2
        assert "--samples" in refused.output
        assert str(there) in " ".join(refused.output.split())
    assert (folder / "mine").read_text() == "x"

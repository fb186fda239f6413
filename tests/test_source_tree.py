"""A clone: its import, compiled or not, and the versions of its linters."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from processes import python
from tree import ROOT

import bn_ext
from bn_ext import _core

PACKAGE = Path(bn_ext.__file__).parent


def test_hooks_have_the_versions_of_the_linters():
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)
    listed = project["project"]["optional-dependencies"]["lint"]
    listed += project["dependency-groups"]["workflows"]
    pins = dict(re.findall(r"([\w-]+)==([\d.]+)", " ".join(listed)))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    found = re.findall(r"/([\w-]+)\n +rev: v([\d.]+)", hooks)
    names = {name.removeprefix("mirrors-").removesuffix("-pre-commit"): v for name, v in found}
    assert len(pins) == 5
    assert pins == {name: names[name] for name in pins}


@pytest.fixture
def clone(tmp_path):
    """The package beside an empty src_c, by which it is known as a clone."""
    shutil.copytree(PACKAGE, tmp_path / "bn_ext", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src_c").mkdir()
    return tmp_path


def core_of(clone):
    return clone / "bn_ext" / Path(_core.__file__).name


def imported(clone, *options):
    """Import bn_ext in the clone and print its folder: (status, output, errors)."""
    code = "import bn_ext; print(bn_ext.__path__[0])"
    done = python(*options, "-c", code, cwd=clone, PYTHONPATH=None, PYTHONSAFEPATH=None)
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_built_clone_imports_silently(clone):
    assert imported(clone) == (0, str(clone / "bn_ext"), "")


@pytest.mark.parametrize("options", [[], ["-S"]], ids=["", "without NumPy"])
def test_an_unbuilt_clone_says_what_to_run(clone, options):
    core_of(clone).unlink()
    status, _, printed = imported(clone, *options)
    assert status == 1
    assert "ModuleNotFoundError" not in printed
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert printed.splitlines()[-1] == (
        f"ImportError: bn_ext in {clone} is source code that has not been compiled for {python}: "
        "run 'python -m pip install -e .' there, or start Python in another folder to import an "
        "installed bn_ext"
    )


def test_an_installed_package_without_its_core(clone):
    core_of(clone).unlink()
    shutil.rmtree(clone / "src_c")
    status, _, printed = imported(clone)
    assert status == 1
    assert printed.splitlines()[-1].startswith(f"ImportError: bn_ext in {clone} has no compiled")


def test_other_missing_modules_keep_their_names(clone):
    """An import that fails within the core does not count as a missing core."""
    core_of(clone).unlink()
    (clone / "bn_ext" / "_core.py").write_text("import no_such_module")
    status, _, printed = imported(clone)
    assert status == 1
    assert printed.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"

"""Folders and modules are floors: nothing uses what stands above it."""

import re

from tree import ROOT

#: From the ground up. What shares a floor does not use each other.
PYTHON = (
    "_version _dtypes _groups _state _typing",
    "_results",
    "_core",
    "_runtime _derivatives",
    "_sums",
    "_functions",
    "_layer specs",
    "autograd dask testing torch",
    "_bench",
    "_cli",
    "__init__ __main__",
)
#: Imports for type checkers alone are not counted: _typing names the dtypes of _core.pyi.
UNUSED = re.compile(r"^if TYPE_CHECKING:\n( .*\n|\n)+", re.MULTILINE)
IMPORT = re.compile(r"^ *(?:from|import) bn_ext(?:\.(\w+))?", re.MULTILINE)


def imported(text):
    """The parts of bn_ext that a module imports; what comes from bn_ext itself is __init__'s."""
    return [name or "__init__" for name in IMPORT.findall(UNUSED.sub("", text))]


def test_imports_go_down():
    floor = {name: k for k, names in enumerate(PYTHON) for name in names.split()}
    package = ROOT / "bn_ext"
    files = [p for p in package.rglob("*") if p.suffix in (".py", ".pyx", ".pxi")]
    pairs = set()
    for path in files:
        mine = path.relative_to(package).parts[0].removesuffix(".py").removesuffix("_src")
        for name in imported(path.read_text()):
            pairs.add((mine, name))
            assert name == mine or floor.get(name, floor["__init__"]) < floor[mine], path
    assert {mine for mine, _ in pairs} >= floor.keys() - {*PYTHON[0].split()}

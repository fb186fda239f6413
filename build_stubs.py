"""Docstrings for the stubs that ship: editors cannot read a compiled module, nor run a table.

The stubs here hold signatures alone. setup.py's build_py calls `document` with its copies of
them. The docstrings are read in the sources, since a cross build cannot import what it compiles.
"""

import ast
import re
import runpy
from inspect import cleandoc
from pathlib import Path
from textwrap import indent

PACKAGE = Path(__file__).resolve().parent / "bn_ext"
# def name(...): """...""" of the first column, and name.__doc__ = """..."""
DEFINITION = re.compile(
    r'^(?:def (\w+)\([^:]*\):\n +|(\w+)\.__doc__ = )("""(?:.*?)""")', re.MULTILINE | re.DOTALL
)


def core():
    """{name: docstring} of what the Cython sources define for all."""
    found = {}
    for path in sorted([*PACKAGE.glob("*.pyx"), *PACKAGE.glob("*.pxi")]):
        for function, result, text in DEFINITION.findall(path.read_text(encoding="utf-8")):
            found[function or result] = cleandoc(ast.literal_eval(text))
    return found


def specs(module):
    """{name: docstring} of the operators and outputs of one of bn_ext.specs."""
    rows = runpy.run_path(str(PACKAGE / "specs" / "_table.py"))["ROWS"].values()
    found = {}
    for row in rows:
        if row.spec.module == module:
            found[row.name] = cleandoc(row.docstring())
            if (result := row.result()) is not None:
                found[result.__name__] = result.__doc__
    return found


#: {stub in the package: what has its docstrings}
STUBS = {
    "_core.pyi": core,
    **{
        f"specs/{path.stem}.pyi": lambda module=path.stem: specs(module)
        for path in sorted((PACKAGE / "specs").glob("*.pyi"))
    },
}


def definitions(stub):
    """{public name: its definition, of overloads the last: the one that jedi goes to}"""
    return {
        node.name: node
        for node in ast.parse(stub).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }


def documented(stub, docstrings):
    """The stub's text with these docstrings in place of those that it has."""
    lines = stub.splitlines()
    nodes = definitions(stub)
    for name in sorted(nodes, key=lambda name: nodes[name].lineno, reverse=True):
        first = nodes[name].body[0]
        before, after = first.lineno - 1, first.lineno - 1
        if ast.get_docstring(nodes[name]) is not None:
            after = first.end_lineno
        elif lines[before].endswith(": ..."):
            lines[before] = lines[before].removesuffix(" ...")
            before = after = first.lineno
        text = docstrings[name].replace("\\", "\\\\")
        end = "\n" if "\n" in text else ""
        docstring = f'"""{text}{end}"""'
        lines[before:after] = indent(docstring, "    ").splitlines()
    return "\n".join(lines) + "\n"


def document(package):
    """Put the docstrings into a build's copies of the stubs."""
    for name, docstrings in STUBS.items():
        path = Path(package, name)
        text = documented(path.read_text(encoding="utf-8"), docstrings())
        path.write_text(text, encoding="utf-8", newline="\n")

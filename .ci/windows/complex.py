"""Complex functions that NumPy's wheels import, and Wine 8's C runtime lacks: a DLL that has them.

    python complex.py SITE OUT CC [FLAG ...]

SITE is a folder of Windows' packages. The DLL, OUT/bn-ext-math-..., forwards all other
functions that they import from the mathematics there, and the packages get its name, which is as
long, in place of the one there.
"""

import subprocess
import sys
from pathlib import Path

import pefile

THEIRS, OURS = b"api-ms-win-crt-math-l1-1-0.dll", b"bn-ext-math-crt-l1-1-0-for.dll"
assert len(THEIRS) == len(OURS)
#: Functions with one complex argument, and what they return; cpow has two.
RETURNED = dict.fromkeys(["cabs", "carg", "cimag", "creal"], "{}")
RETURNED |= dict.fromkeys(
    ["ccos", "ccosh", "cexp", "cpow", "csin", "csinh", "ctan", "ctanh"], "{} _Complex"
)
#: On Windows, long doubles are doubles.
SUFFIXES = {"": "double", "f": "float", "l": "double"}


def imported(path):
    """Names that a file imports from the runtime's mathematics."""
    file = pefile.PE(str(path), fast_load=True)
    file.parse_data_directories(pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_IMPORT"])
    libraries = getattr(file, "DIRECTORY_ENTRY_IMPORT", [])
    return {each.name.decode() for one in libraries if one.dll == THEIRS for each in one.imports}


def definition(name):
    """The C of a complex function; "" if it is none."""
    base = next((base for base in RETURNED for s in SUFFIXES if name == base + s), None)
    if not base:
        return ""
    number = SUFFIXES[name.removeprefix(base)]
    letter = "f" if number == "float" else ""
    arguments = ["a", "b"][: 1 + (base == "cpow")]
    result = {"creal": "__real__ a", "cimag": "__imag__ a"}.get(base)
    result = result or f"{base}{letter}({', '.join(arguments)})"
    declared = ", ".join(f"{number} _Complex {argument}" for argument in arguments)
    return f"{RETURNED[base].format(number)} our_{name}({declared}) {{ return {result}; }}\n"


def main(site, out, *compiler):
    files = [path for kind in ("pyd", "dll") for path in sorted(Path(site).rglob(f"*.{kind}"))]
    users = {path: names for path in files if (names := imported(path))}
    names = sorted(set().union(*users.values()))
    ours = {name: text for name in names if (text := definition(name))}
    source, exports = Path(out, "complex.c"), Path(out, "complex.def")
    source.write_text("#include <complex.h>\n" + "".join(ours.values()))
    lines = [f"{name}=our_{name}" if name in ours else f"{name}=ucrtbase.{name}" for name in names]
    exports.write_text("\n".join([f'LIBRARY "{OURS.decode()}"', "EXPORTS", *lines]) + "\n")
    library = Path(out, OURS.decode())
    subprocess.run([*compiler, "-shared", "-O1", source, exports, "-o", library], check=True)
    for path in users:
        path.write_bytes(path.read_bytes().replace(THEIRS, OURS))
    print(f"{len(ours)} complex functions for {len(users)} files")


if __name__ == "__main__":
    main(*sys.argv[1:])

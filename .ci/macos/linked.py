"""Is this extension whole, though it cannot run here? EXTENSION MACHINE OPENMP (1 or 0)

A linker for macOS leaves unknown names to the loader, as Python's need. So none but Python's may be
left.
"""

import sys

from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

MACHINES = {"arm64": 0x0100000C, "x86_64": 0x01000007}  # Mach-O's numbers
OF_THE_LINKER = {"___dso_handle", "__mh_dylib_header"}
LEFT_TO_THE_LOADER = 0xFE  # in place of a library's number
WEAK = 0x40  # the loader may find none

path, machine, openmp = sys.argv[1:]
file = MachO(path)
(header,) = file.headers
libraries = [name.rpartition("/")[2] for _, _, name in header.walkRelocatables()]
symbols = SymbolTable(file)
exported = {name.decode() for _, name in symbols.extdefsyms} - {
    "___dso_handle",
    "__mh_dylib_header",
}
left = {
    name.decode()
    for symbol, name in symbols.undefsyms
    if symbol.n_desc >> 8 & 0xFF == LEFT_TO_THE_LOADER and not symbol.n_desc & WEAK
}
others = {name for name in left if not name.startswith(("_Py", "__Py"))}
assert header.header.cputype == MACHINES[machine], header.header.cputype
assert exported == {"_PyInit__core"}, exported
assert libraries == ["libSystem.B.dylib", *["libomp.dylib"] * (openmp == "1")], libraries
assert not others, others
print(f"{machine}: {len(symbols.undefsyms)} names found in {', '.join(libraries)} or Python")

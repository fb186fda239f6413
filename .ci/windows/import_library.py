"""The import library that CPython's embeddable distribution lacks: DLL FOLDER."""

import subprocess
import sys
from pathlib import Path

import pefile

dll, folder = map(Path, sys.argv[1:])
exports = pefile.PE(str(dll)).DIRECTORY_ENTRY_EXPORT.symbols
names = [each.name.decode() for each in exports if each.name]
definition = folder / f"{dll.stem}.def"
definition.write_text("\n".join([f"LIBRARY {dll.name}", "EXPORTS", *names]) + "\n")
dlltool = [sys.executable, "-m", "ziglang", "dlltool", "-D", dll.name]
subprocess.run([*dlltool, "-d", definition, "-l", folder / f"{dll.stem}.lib"], check=True)

"""What a repaired wheel may hold: Python, types, one stripped extension, libgomp; at most 1 MB."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

KNOWN = (".py", ".pyi", "py.typed")

for wheel in map(Path, sys.argv[1:]):
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        files = [i for i in archive.infolist() if not i.is_dir()]
        ours = [i for i in files if i.filename.startswith("bn_ext/")]
        extensions = [i for i in ours if ".so" in i.filename]
        others = [
            i.filename for i in ours if not i.filename.endswith(KNOWN) and i not in extensions
        ]
        assert not others, f"{wheel.name}: {others}"
        (extension,) = extensions
        libraries = [i for i in files if i.filename.startswith("bn_ext.libs/")]
        assert all("libgomp" in i.filename for i in libraries), libraries
        size = wheel.stat().st_size - sum(i.compress_size for i in libraries)
        assert size <= 1_000_000, f"{wheel.name}: {size} bytes without libgomp"
        path = archive.extract(extension, folder)
        symbols = subprocess.run(["nm", path], capture_output=True, text=True)
        assert not symbols.stdout, f"{wheel.name}: not stripped"
        shown = subprocess.run(
            ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        names = [line.split()[-1] for line in shown]
        assert names == ["PyInit__core"], f"{wheel.name}: exports {names}"
    print(f"{wheel.name}: {size} bytes, libgomp {sum(i.compress_size for i in libraries)}")

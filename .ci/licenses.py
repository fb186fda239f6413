"""Give each wheel the license of the OpenMP runtime that a tool has put into it.

    python .ci/licenses.py [--texts FOLDER] WHEEL_OR_FOLDER ...

FOLDER has the texts, LICENSE-*.txt; default: the folder of the project. The metadata's expression
names all licenses, as in the standard for it (PEP 639).
"""

import argparse
import base64
import hashlib
import re
import zipfile
from pathlib import Path

OURS = "BSD-3-Clause"
#: A runtime, by the name of its file, which tools change: license, text.
RUNTIMES = {
    r"libgomp\b.*\.so[.\d]*": ("GPL-3.0-or-later WITH GCC-exception-3.1", "LICENSE-libgomp.txt"),
    r"libomp\b.*\.(dylib|dll)": ("Apache-2.0 WITH LLVM-exception", "LICENSE-libomp.txt"),
    r"libiomp5md\b.*\.dll": ("LicenseRef-Intel-Simplified", "LICENSE-libiomp5md.txt"),
}


def record_of(name, data):
    """The line of a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def licensed(files, texts):
    """The files of a wheel, {name: bytes}, with the licenses of what they hold."""
    libraries = [name.rpartition("/")[2] for name in files]
    held = [
        license
        for pattern, license in RUNTIMES.items()
        if any(re.fullmatch(pattern, name) for name in libraries)
    ]
    (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    folder = metadata.removesuffix("METADATA")
    text, n = re.subn(
        f"(?m)^License-Expression: {OURS}$",
        f"License-Expression: {' AND '.join([OURS, *(name for name, _ in held)])}",
        files[metadata].decode(),
    )
    assert n == 1, f"{metadata}: expected License-Expression: {OURS}"
    lines = "".join(f"License-File: {file}\n" for _, file in held)
    text = text.replace("License-File: LICENSE\n", f"License-File: LICENSE\n{lines}", 1)
    changed = {metadata: text.encode()}
    changed |= {f"{folder}licenses/{file}": (texts / file).read_bytes() for _, file in held}
    record, before = f"{folder}RECORD", files[f"{folder}RECORD"].decode().splitlines()
    lines = [line for line in before if line.partition(",")[0] not in changed]
    lines += [record_of(*each) for each in changed.items()]
    changed[record] = ("\n".join(lines) + "\n").encode()
    return {**files, **changed}, [name for name, _ in held]


def rewrite(wheel, texts):
    with zipfile.ZipFile(wheel) as file:
        entries = {entry.filename: entry for entry in file.infolist()}
        files = {name: file.read(name) for name in entries}
    files, names = licensed(files, texts)
    like = next(entry for name, entry in entries.items() if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            entry = entries.get(name) or zipfile.ZipInfo(name, like.date_time)
            entry.external_attr = entry.external_attr or like.external_attr
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, data)
    print(f"{wheel.name}: {' AND '.join([OURS, *names])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args()
    for place in options.wheels:
        for wheel in sorted(place.glob("*.whl")) if place.is_dir() else [place]:
            rewrite(wheel, options.texts)


if __name__ == "__main__":
    main()

"""What a repaired wheel may hold: Python, types, one stripped and hardened extension, libgomp.

    python .ci/check_wheel.py [--sbom] WHEEL ...

The wheel's description has no relative links. Without libgomp, it has at most 2.1 MB. If it has
libgomp, it also has libgomp's licence and, with --sbom, the bill of materials that auditwheel
writes if a package of the system owns the library. Needs pyelftools, which auditwheel brings.
"""

import json
import sys
import zipfile
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

KNOWN = (".py", ".pyi", "py.typed")
DF_BIND_NOW, DF_1_NOW, EXECUTABLE = 0x8, 0x1, 0x1
ENDBR64, PACIASP = b"\xf3\x0f\x1e\xfa", b"\x3f\x23\x03\xd5"
X86_FEATURES, SHADOW_STACK = 0xC0000002, 0x2


def features(elf):
    """The bits of .note.gnu.property for x86's checks of control flow."""
    found = 0
    for section in elf.iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                for item in note["n_desc"] if note["n_type"] == "NT_GNU_PROPERTY_TYPE_0" else ():
                    if item["pr_type"] in (X86_FEATURES, "GNU_PROPERTY_X86_FEATURE_1_AND"):
                        found |= item["pr_data"]
    return found


def faults(elf):
    """Yield what is wrong with an extension, in a few words each."""
    if elf.get_section_by_name(".symtab"):
        yield "not stripped"
    symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
    defined = {s.name: s for s in symbols if s["st_shndx"] != "SHN_UNDEF"}
    needed = {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"}
    if set(defined) != {"PyInit__core"}:
        yield f"exports {sorted(defined)}"

    segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
    if "PT_GNU_RELRO" not in segments:
        yield "no -z relro"
    if "PT_GNU_STACK" not in segments or segments["PT_GNU_STACK"]["p_flags"] & EXECUTABLE:
        yield "its stack can be executed"
    (dynamic,) = (s for s in elf.iter_segments() if s["p_type"] == "PT_DYNAMIC")
    tags = {tag["d_tag"]: tag["d_val"] for tag in dynamic.iter_tags()}
    now = (
        "DT_BIND_NOW" in tags
        or tags.get("DT_FLAGS", 0) & DF_BIND_NOW
        or tags.get("DT_FLAGS_1", 0) & DF_1_NOW
    )
    if not now:
        yield "no -z now"
    if "DT_TEXTREL" in tags:
        yield "its code is relocated"

    if "__stack_chk_fail" not in needed:
        yield "no -fstack-protector-strong"
    # musl has no checked functions.
    libc = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    if "libc.so.6" in libc and not any(name.endswith("_chk") for name in needed):
        yield "no _FORTIFY_SOURCE"
    text = elf.get_section_by_name(".text")
    if elf["e_machine"] == "EM_X86_64":
        at = defined["PyInit__core"]["st_value"] - text["sh_addr"]
        if text.data()[at : at + 4] != ENDBR64 or not features(elf) & SHADOW_STACK:
            yield "no -fcf-protection, or no -z shstk"
    elif elf["e_machine"] == "EM_AARCH64" and PACIASP not in text.data():
        yield "no -mbranch-protection"


def check_libgomp(archive, sbom):
    """Its licence, and what auditwheel says of it."""
    notes = {i.filename.partition(".dist-info/")[2]: i for i in archive.infolist()}
    licence = archive.read(notes["licenses/LICENSE-libgomp.txt"]).decode()
    assert "GNU GENERAL PUBLIC LICENSE" in licence
    assert "GCC RUNTIME LIBRARY EXCEPTION" in licence
    if sbom:
        listed = json.loads(archive.read(notes["sboms/auditwheel.cdx.json"]))["components"]
        assert any("libgomp" in part["name"] and part["version"] for part in listed), listed


def check(wheel, sbom):
    """The wheel's size without libgomp, and libgomp's; an assertion fails if something is wrong."""
    with zipfile.ZipFile(wheel) as archive:
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
        if libraries:
            check_libgomp(archive, sbom)
        (about,) = (i for i in archive.infolist() if i.filename.endswith(".dist-info/METADATA"))
        assert b"](docs/" not in archive.read(about), "README's links must not be relative"
        vendored = sum(i.compress_size for i in libraries)
        size = wheel.stat().st_size - vendored
        assert size <= 2_100_000, f"{wheel.name}: {size} bytes without libgomp"
        wrong = list(faults(ELFFile(BytesIO(archive.read(extension)))))
        assert not wrong, f"{wheel.name}: {', '.join(wrong)}"
    return size, vendored


if __name__ == "__main__":
    wheels = [word for word in sys.argv[1:] if word != "--sbom"]
    for path in map(Path, wheels):
        print("{}: {} bytes, libgomp {}".format(path.name, *check(path, "--sbom" in sys.argv)))

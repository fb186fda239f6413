"""Dispatch: the levels that this CPU has, and the one that is forced."""

import platform
import re
from pathlib import Path

import pytest
from processes import strict

import bn_ext
from bn_ext import _core

ISAS = bn_ext.available_isas()

#: {level: CPU flags that it needs beyond those of the level before, as in /proc/cpuinfo}
NEEDED = {
    "baseline": "sse2",
    "v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe",
    "v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the flags of x86 CPUs")
def test_levels_are_those_of_the_cpu():
    """If a level were missing, calls could be slower, but no result would show it."""
    cpu = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    binary = Path(_core.__file__).read_bytes()
    levels = []
    for name, flags in NEEDED.items():
        if not set(flags.split()) <= set(cpu[1].split()):
            break
        levels += [name] if name.encode() + b"\0" in binary else []
    assert list(ISAS) == levels


@pytest.mark.parametrize("isa", [*ISAS, "", None])
def test_forced_isa(isa):
    """An empty one is none. By default, it is the best."""
    done = strict("import bn_ext; print(bn_ext.get_isa()); bn_ext.show_config()", BN_EXT_ISA=isa)
    assert (done.stdout.split()[0], done.stderr) == (isa or ISAS[-1], "")
    assert re.search(rf"isa_forced +{bool(isa)}", done.stdout)


@pytest.mark.parametrize("isa", ["v5", " ", "avx2", "V3"])
def test_unknown_isa_is_an_import_error(isa):
    done = strict("import bn_ext", BN_EXT_ISA=isa)
    assert done.returncode != 0
    assert f"ImportError: BN_EXT_ISA: expected one of {', '.join(ISAS)}" in done.stderr
    assert f"got {isa!r}" in done.stderr

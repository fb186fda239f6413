"""Kernels: a fence, no read past a ring of coefficients.

oracle/ compares each kernel by itself with NumPy, bit for bit; test_rounding.py has
every conversion of 16-bit types.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import guarded
import pytest
from oracle import running
from oracle.dtypes import DTYPES as STORED
from oracle.values import case_of

from bn_ext import _core

#: Functions that never return.
NO_RETURN = re.compile("__stack_chk_fail|abort|__asan_report|__ubsan_handle|__sanitizer")


def instructions():
    """{address: (operation, arguments, address of the next)} of the extension."""
    command = ["objdump", "-d", "--no-show-raw-insn", _core.__file__]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = re.compile(r"^ *([0-9a-f]+):\t(?:(?:notrack|bnd) )?(\S+) *(.*)$", re.MULTILINE)
    results = line.findall(listing)
    addresses = [int(at, 16) for at, _, _ in results]
    following = [*addresses[1:], None]
    return {
        at: (operation, arguments, behind)
        for at, (_, operation, arguments), behind in zip(addresses, results, following, strict=True)
    }


def follow(operation, arguments, behind):
    if operation.startswith("ret") or (operation == "call" and NO_RETURN.search(arguments)):
        return []
    if not operation.startswith("j"):
        return [behind]
    if arguments.startswith("*"):  # to an unknown place
        return []
    target = int(arguments.split()[0], 16)
    return [target] if operation == "jmp" else [target, behind]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 needs the fence")
@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
@pytest.mark.skipif(platform.system() != "Linux", reason="reads the listing of an ELF file")
def test_no_store_past_the_cache_without_a_fence():
    """From each nontemporal store, some path reaches a fence before the function returns.

    Not every path does: unoptimized code has other paths, which no call takes. No run would show a
    missing fence: on today's CPUs, a lock or an atomic operation of the runtime acts as a fence
    before another thread reads the data.
    """
    if b"__asan_init" in Path(_core.__file__).read_bytes():
        pytest.skip("sanitizers prevent inlining, and this test does not look into callers")
    code = instructions()
    before = {}
    for at, instruction in code.items():
        for following in follow(*instruction):
            before.setdefault(following, []).append(at)
    ways = [at for at, (operation, _, _) in code.items() if operation == "sfence"]
    fenced = set()
    while ways:
        at = ways.pop()
        if at not in fenced:
            fenced.add(at)
            ways += before.get(at, [])
    stores = {at for at, (operation, _, _) in code.items() if "movnt" in operation}
    assert stores
    assert stores - fenced == set()


@pytest.mark.fast
@pytest.mark.parametrize("data", STORED)
def test_a_ring_is_not_read_past_its_end(rng, isa, data):
    """The coefficients end right before a page that must not be touched."""
    region = guarded.Region(8)
    memory = running.Memory(STORED[data], 4, 100, ("write", "backward"))

    def at_end(coefs):
        copy = region.array(coefs.shape, coefs.dtype, coefs.strides, at_end=True)
        copy[:] = coefs
        return copy

    for columns in range(1, 101):
        case = case_of(STORED[data], 4, columns, rng)
        operands = memory.views(case, columns, 0, 4)
        span = running.Span(columns, abreast=columns % 2 == 1)
        running.run_write(isa, "backward", case, operands, span, at_end)

"""Floating-point modes that a caller may be in: how to set them, and how to tell them apart."""

import contextlib
import ctypes
import platform
import sys
import warnings

import numpy as np

X86 = platform.machine() in ("x86_64", "AMD64")
WINDOWS = sys.platform == "win32"
# name -> control bits for x86's MXCSR, for Arm's FPCR, for Windows' _controlfp
FP_MODES = {
    "default": (0, 0, 0),
    "flush": (0x8040, 1 << 24, 0x01000000),  # FTZ and DAZ; FZ
    "up": (0x4000, 0x400000, 0x200),
    "down": (0x2000, 0x800000, 0x100),
    "zero": (0x6000, 0xC00000, 0x300),
}
# Byte offset of MXCSR or FPCR in fenv_t of macOS, or of glibc and musl.
FENV_AT = (4 if X86 else 8) if sys.platform == "darwin" else (28 if X86 else 0)
# Does fenv_t begin with x87's control word?
X87 = X86 and not WINDOWS
# FE_INVALID, FE_DIVBYZERO and FE_OVERFLOW.
SERIOUS = 0b11100 if WINDOWS else 0b1101 if X86 else 0b111

LIBM = ctypes.CDLL("ucrtbase" if WINDOWS else None)


@contextlib.contextmanager
def fp_mode(name):
    """Run in this mode."""
    if WINDOWS:
        before, mask = LIBM._controlfp(0, 0), 0x03000300  # subnormal numbers, rounding
        LIBM._controlfp(FP_MODES[name][2], mask)
        try:
            yield
        finally:
            LIBM._controlfp(before, mask)
        return
    env, changed = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    LIBM.fegetenv(env)
    LIBM.fegetenv(changed)
    place = slice(FENV_AT, FENV_AT + 4)
    word = int.from_bytes(changed.raw[place], "little") | FP_MODES[name][0 if X86 else 1]
    changed[place] = word.to_bytes(4, "little")
    LIBM.fesetenv(changed)
    try:
        yield
    finally:
        LIBM.fesetenv(env)


def fp_mode_in_effect():
    tiny, one, step = np.float32(2e-38), np.float32(1), np.float32(2**-26)
    flushed, up, down = tiny * np.float32(0.1) == 0, one + step > 1, one - step < 1
    if flushed or up:
        return "flush" if flushed else "up"
    return "default" if not down else "down" if -one - step < -1 else "zero"


@contextlib.contextmanager
def errors(mode):
    """np.seterr(all=how), and every warning an error."""
    with warnings.catch_warnings(), np.errstate(all=mode):
        warnings.simplefilter("error")
        yield


#: Mode: (context manager, its argument, a function that returns what is in effect).
MODES = {name: (fp_mode, name, fp_mode_in_effect) for name in FP_MODES if name != "default"}
MODES["np.seterr"] = errors, "raise", lambda: np.geterr()["under"]

"""Floating-point modes that a caller may be in: how to set them, and how to tell them apart."""

import contextlib
import ctypes
import platform
import warnings

import numpy as np

X86 = platform.machine() == "x86_64"
# name -> control bits for x86's MXCSR, for Arm's FPCR
FP_MODES = {
    "default": (0, 0),
    "flush": (0x8040, 1 << 24),  # FTZ and DAZ; FZ
    "up": (0x4000, 0x400000),
    "down": (0x2000, 0x800000),
    "zero": (0x6000, 0xC00000),
}
# Byte offset of MXCSR or FPCR in fenv_t of glibc and musl.
FENV_AT = 28 if X86 else 0
# FE_INVALID, FE_DIVBYZERO and FE_OVERFLOW.
SERIOUS = 0b1101 if X86 else 0b111

LIBM = ctypes.CDLL(None)


@contextlib.contextmanager
def fp_mode(name):
    """Run in this mode."""
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

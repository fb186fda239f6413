"""Every formula in NumPy, as src_c/kernels/formulas.inc has it in C.

To add one, add its entry to FORMULAS. Its two expressions are given operands (x.src, ...) and
coefficients (c.mean, ...) of the arithmetic type by role, and only those that its line in
formulas.h says the pass reads and takes: one that uses more raises AttributeError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bn_ext import _core
from bn_ext._verify.dtypes import Array

__all__ = ["COEFS", "FORMULAS", "INPUTS", "KERNELS", "OPERANDS", "SUMS", "Kernel", "needs"]

#: A pass ("sum" or "write") of a formula.
Kernel = tuple[str, str]

_INTERFACE = _core._kernel_interface()
#: Names of roles, in the order of the C side; sums that a formula may have.
OPERANDS: tuple[str, ...] = _INTERFACE["operands"]
COEFS: tuple[str, ...] = _INTERFACE["coefs"]
SUMS: int = _INTERFACE["sums"]


@dataclass(frozen=True)
class Formula:
    """Two expressions: the terms of each sum; what is written, by operand."""

    terms: Callable[[Any, Any], tuple[Array, ...]] | None
    results: Callable[[Any, Any], dict[str, Array]]


def dy_and_dy_xc(x: Any, c: Any) -> tuple[Array, ...]:
    """The terms of diff_beta and of diff_gamma, before its rstd."""
    return x.diff_dst, x.diff_dst * (x.src - c.mean)


FORMULAS = {
    "backward": Formula(
        terms=dy_and_dy_xc,
        results=lambda x, c: {
            "diff_src": c.scale * (x.diff_dst - (c.shift + (x.src - c.mean) * c.slope))
        },
    ),
    "frozen": Formula(
        terms=dy_and_dy_xc,
        results=lambda x, c: {"diff_src": c.scale * x.diff_dst},
    ),
}


def needs(kernel: Kernel) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the operands that a kernel reads, of those it writes, of coefficients it takes."""
    pass_, formula = kernel
    reads, writes, takes = _INTERFACE["formulas"][formula][pass_]
    return reads, writes, takes


def _kernels() -> list[Kernel]:
    """Formulas that sum the same terms share the kernel of the first."""
    found: list[Kernel] = []
    seen: set[object] = {None}
    for name, formula in FORMULAS.items():
        if formula.terms not in seen:
            found.append(("sum", name))
        seen.add(formula.terms)
        found.append(("write", name))
    return found


KERNELS = _kernels()
#: Operands that any of them reads.
INPUTS = tuple(name for name in OPERANDS if any(name in needs(kernel)[0] for kernel in KERNELS))

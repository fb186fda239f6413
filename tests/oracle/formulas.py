"""Every formula in NumPy, as src_c/kernels/formulas.inc has it in C.

To add one, add its entry to TERMS or to RESULTS. Its expression gets operands (x.src, ...) and
coefficients (c.mean, ...) by role, in the arithmetic type, but only those that its line in
formulas.h names: an expression that uses others raises AttributeError. x.gate has a truth value for
each element. x.stored(y) are the numbers y after they have been stored and loaded again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle import compiled
from oracle.dtypes import Array

#: A pass ("sum" or "write"), and one of its formulas.
Kernel = tuple[str, str]

_INTERFACE = compiled.interface()
#: Names of operands, in the order of bn.h.
OPERANDS: tuple[str, ...] = _INTERFACE["operands"]
#: Names of coefficients, in the order of formulas.h.
COEFS: tuple[str, ...] = _INTERFACE["coefs"]
#: How many sums each formula has.
SUMS: dict[str, int] = _INTERFACE["sums"]


def where_positive(gate: Array, values: Array) -> Array:
    """The values, but 0 where the gate is 0 or less. Where the gate is NaN, values are kept."""
    return np.where(gate <= 0, values.dtype.type(0), values)


def normalized(x: Any, c: Any) -> Array:
    """What every forward operation writes, before a fused addition or ReLU."""
    result: Array = c.scale * (x.src - c.mean) + c.shift
    return result


def behind_relu(x: Any, c: Any) -> Array:
    """diff_dst through a ReLU whose gate is computed again, from dst as it would be stored."""
    y = c.scale * (x.src - c.mean) + c.offset
    return where_positive(x.stored(y), x.diff_dst)


def behind_gate(x: Any, c: Any) -> Array:
    passed: Array = np.where(x.gate, x.diff_dst, x.diff_dst.dtype.type(0))
    return passed


def diff_src_1(x: Any, c: Any) -> dict[str, Array]:
    """What else is written if src_1 was added: its gradient."""
    return {"diff_src_1": behind_gate(x, c)}


#: diff_dst as it passes each gate.
GATES: dict[str, Callable[[Any, Any], Array]] = {"": lambda x, c: x.diff_dst}
GATES |= {", relu": behind_relu, ", gated": behind_gate}


def with_gates(name: str, formula: Callable[[Array, Any, Any], Any]) -> dict[str, Any]:
    return {
        name + gate: lambda x, c, passed=passed: formula(passed(x, c), x, c)
        for gate, passed in GATES.items()
    }


def with_clipping(name: str, formula: Callable[[Any, Any], Array]) -> dict[str, Any]:
    return {
        name: lambda x, c: {"dst": formula(x, c)},
        f"{name}, clipped": lambda x, c: {"dst": where_positive(formula(x, c), formula(x, c))},
    }


def moments(xc: Array) -> tuple[Array, ...]:
    return xc, xc * xc


#: The terms of each sum.
TERMS: dict[str, Callable[[Any, Any], tuple[Array, ...]]] = {
    # diff_beta's and diff_gamma's
    **with_gates("gradients", lambda dy, x, c: (dy, dy * (x.src - c.mean))),
    "moments": lambda x, c: moments(x.src - c.mean),
    "scaled moments": lambda x, c: moments(x.src * c.scale - c.mean),
    "double gradients": lambda x, c: (
        x.diff_dst,
        x.diff_dst * (x.src - c.mean),
        x.diff_diff_src,
        x.diff_diff_src * (x.src - c.mean),
        x.diff_dst * x.diff_diff_src,
    ),
}

#: What is written, by operand.
RESULTS: dict[str, Callable[[Any, Any], dict[str, Array]]] = {
    **with_gates(
        "backward",
        lambda dy, x, c: {"diff_src": c.scale * (dy - (c.shift + (x.src - c.mean) * c.slope))},
    ),
    **with_gates("frozen", lambda dy, x, c: {"diff_src": c.scale * dy}),
    "backward, add, gated": lambda x, c: RESULTS["backward, gated"](x, c) | diff_src_1(x, c),
    "frozen, add, gated": lambda x, c: RESULTS["frozen, gated"](x, c) | diff_src_1(x, c),
    **with_clipping("normalize", normalized),
    **with_clipping("normalize, add", lambda x, c: normalized(x, c) + x.src_1),
    "double backward": lambda x, c: {
        "diff_src": (c.slope * x.diff_dst + c.cross * x.diff_diff_src)
        + (c.bend * (x.src - c.mean) + c.offset),
        "diff_diff_dst": c.scale * x.diff_diff_src + (c.slope * (x.src - c.mean) + c.shift),
    },
    "double frozen": lambda x, c: {
        "diff_src": c.slope * x.diff_dst,
        "diff_diff_dst": c.scale * x.diff_diff_src + (c.slope * (x.src - c.mean) + c.shift),
    },
}

if [*TERMS, *RESULTS] != [*compiled.formulas()]:
    raise RuntimeError(
        f"expected the formulas of formulas.h in their order, {[*compiled.formulas()]}, "
        f"got {[*TERMS, *RESULTS]}"
    )

KERNELS: list[Kernel] = [("sum", name) for name in TERMS] + [("write", name) for name in RESULTS]


def needs(kernel: Kernel) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names: the operands that a kernel reads, those that it writes, the coefficients it takes."""
    reads, writes, takes = _INTERFACE["formulas"][kernel[1]]
    return reads, writes, takes


#: The operand that is bits.
GATE = "gate"
#: Operands that at least one kernel reads.
INPUTS = tuple(name for name in OPERANDS if any(name in needs(kernel)[0] for kernel in KERNELS))

"""How the results of other projects' cases are judged."""

import ml_dtypes
import numpy as np
from cases import SHORT, dtype


def judge(results, exact, sizes, name):
    """Each array may be off by one ulp of its largest term; in float32 and float64, by three.

    `results`, `exact` and `sizes` (the terms' absolute values) are sequences of arrays; the first
    were rounded to the dtype `name`. Errors are compared with terms, because terms may cancel: a
    gradient may be smaller than its terms by any factor. A float32 dst is rounded several times; a
    16-bit dst is computed in float32, so only its last rounding matters. NaN and Inf must be where
    `exact` has them.
    """
    ulps = (1 if name in SHORT else 3) * np.longdouble(ml_dtypes.finfo(dtype(name)).eps)
    for place, arrays in enumerate(zip(results, exact, sizes, strict=True)):
        values, right, size = (np.asarray(a).astype(np.longdouble) for a in arrays)
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert np.array_equal(kind(values), kind(right)), (place, kind.__name__)
        finite = np.isfinite(right)
        error = abs(values[finite] - right[finite]).max(initial=0)
        allowed = np.ldexp(ulps, np.frexp(abs(size[finite]).max(initial=0))[1] - 1)
        assert error <= allowed, (place, float(error / allowed), right.shape)

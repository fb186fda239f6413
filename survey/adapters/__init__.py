"""Batch normalization of other packages, as functions that `bn_ext.testing` calls.

    bn-ext check survey.adapters.paddle:backward --op backward --layout NCX

A module is a package, or several that are alike; it is imported where that is installed. It has
NAME, the package's name; PACKAGES, of whom PyPI has the version; LAYOUT, its own; and the functions
that the package has: `training`, `inference`, `backward`, `double_backward`. Those of OWN make the
statistics themselves, as automatic gradients do.
"""

from functools import wraps


def demand(array):
    """Refuse the call if there is no such array."""
    if array is None:
        raise NotImplementedError("the package has no batch normalization without it")
    return array


def of_axes(count, layout):
    """The package takes tensors of so many axes: give it axes of one position."""

    def decorated(function):
        @wraps(function)
        def call(src, *arrays, epsilon):
            if src.ndim > count:
                raise NotImplementedError(f"the package takes at most {count} axes")
            at = src.ndim if layout == "NCX" else 1
            shape = *src.shape[:at], *[1] * (count - src.ndim), *src.shape[at:]
            reshaped = (a if a is None or a.ndim == 1 else a.reshape(shape) for a in (src, *arrays))
            result = function(*reshaped, epsilon=epsilon)
            results = result if isinstance(result, tuple) else (result,)
            return tuple(a if a.ndim == 1 else a.reshape(src.shape) for a in results)

        return call

    return decorated

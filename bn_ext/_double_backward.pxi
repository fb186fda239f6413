"""The gradient of the backward pass. Included by _core.pyx."""


def batch_norm_double_backward(src=..., diff_dst=..., mean=..., variance=..., gamma=...,
                               diff_diff_src=..., diff_diff_gamma=None, diff_diff_beta=None, *, epsilon=...,
                               data_format="NXC", is_training=True, out=None, num_threads=None,
                               **refused):
    """Gradient of the gradient: what `batch_norm_backward` returns, differentiated once more.

    Let ``loss`` be a function of the three results of `batch_norm_backward`, and let
    ``diff_diff_src``, ``diff_diff_gamma`` and ``diff_diff_beta`` be its derivatives with respect to
    these results. `batch_norm_double_backward` returns the derivatives of ``loss`` with respect to
    src, diff_dst and gamma. For each channel, with ``dy = diff_dst``, ``g = diff_diff_src``,
    ``rstd = 1 / sqrt(variance + epsilon)``, ``xhat = (src - mean) * rstd`` and ``avg(...)`` the
    mean over the M elements::

        # training
        away(u)       = u - avg(u) - xhat * avg(u*xhat)
        bent          = avg(g)*avg(dy) - avg(g*dy) + 3*avg(dy*xhat)*avg(g*xhat)
        diff_src      = gamma*rstd**2 * (xhat*bent + avg(g*xhat) * (avg(dy) - dy)
                                         + avg(dy*xhat) * (avg(g) - g))
                        + diff_diff_gamma*rstd * away(dy)
        diff_diff_dst = gamma*rstd * away(g) + diff_diff_gamma*xhat + diff_diff_beta
        diff_gamma    = rstd * sum(g * away(dy))

        # frozen
        diff_src      = diff_diff_gamma*rstd * dy
        diff_diff_dst = gamma*rstd * g + diff_diff_gamma*xhat + diff_diff_beta
        diff_gamma    = rstd * sum(g * dy)

    Parameters
    ----------
    src, diff_dst, mean, variance
        As for `batch_norm_backward`. With ``is_training=True``, mean and variance must be those of
        src itself. The result then includes the derivatives through them.
    gamma : array, shape (C,), or None
        The scale, in mean's dtype. None means ones.
    diff_diff_src : array
        Gradient with respect to diff_src, with src's shape and dtype.
    diff_diff_gamma, diff_diff_beta : array, shape (C,), optional
        Gradients with respect to diff_gamma and diff_beta, in mean's dtype. None means zeros.
    epsilon, data_format, is_training, num_threads
        As for `batch_norm_backward`.
    out : tuple (diff_src, diff_diff_dst, diff_gamma), optional
        Arrays to write to; any of them may be None. ``diff_src`` may occupy exactly the memory of
        src, diff_dst or diff_diff_src, and ``diff_diff_dst`` the memory of another of these three.
        No other overlap is accepted.

    Returns
    -------
    BatchNormDoubleBackward
        Named tuple of diff_src and diff_diff_dst (src's shape, dtype and memory order) and
        diff_gamma (shape (C,), mean's dtype). Arrays passed in `out` are themselves returned.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

    Notes
    -----
    src, diff_dst and diff_diff_src are read once for five sums, and once more for both results,
    which are written together. With frozen statistics, these arrays are read only once. For copies
    and for what decides the bits, the Notes of `batch_norm_backward` apply.

    The coefficients of dy, g and ``src - mean`` are rounded to the type of the arithmetic: float64
    for float64 data, else float32. With ``is_training=True``, the coefficient of ``src - mean``
    contains ``rstd**3``. In float32, its magnitude must then lie between 2**-126 and 2**127, unless
    it is 0. If all but rstd is near 1, this allows standard deviations from about 1e-12 to 1e12.
    Outside this range, or if gamma, diff_diff_gamma, the mean or the data is infinite, a result may
    be NaN, Inf or 0 although the formula has another value. For float64 data, the range is wider.

    If left out, diff_diff_gamma and diff_diff_beta are zeros. A diff_diff_gamma of 0 times an
    infinite src or diff_dst is NaN. An empty problem gives empty arrays, and zeros for diff_gamma.

    Examples
    --------
    The derivatives of a penalty on the gradient, ``sum(diff_src**2)``:

    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> diff_dst = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    >>> mean, variance, gamma = src.mean(axis=0), src.var(axis=0), np.ones(2)
    >>> grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1.0)
    >>> second = bn_ext.batch_norm_double_backward(
    ...     src, diff_dst, mean, variance, gamma, 2 * grads.diff_src, epsilon=1.0)
    >>> second.diff_gamma.round(6)
    array([0.416   , 0.000917])

    The penalty is quadratic in diff_dst and in gamma. So diff_dst times ``diff_diff_dst``, summed,
    is twice the penalty, and so is gamma times ``diff_gamma``:

    >>> penalty = (grads.diff_src**2).sum(axis=0)
    >>> np.allclose((diff_dst * second.diff_diff_dst).sum(axis=0), 2 * penalty)
    True
    >>> np.allclose(gamma * second.diff_gamma, 2 * penalty)
    True
    """
    if refused:
        refuse(batch_norm_double_backward, refused)
    cdef Call *c = begin(DOUBLE_BACKWARD)
    try:
        c.problem.training = _as_flag(is_training, "is_training")
        convert_options(c, data_format, num_threads)
        convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
        convert(c, DIFF_DIFF_SRC, diff_diff_src)
        convert(c, DIFF_DIFF_GAMMA, diff_diff_gamma)
        convert(c, DIFF_DIFF_BETA, diff_diff_beta)
        return call(c, out)
    finally:
        end(c)

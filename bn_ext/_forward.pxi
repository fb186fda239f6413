"""The forward pass: training, its halves, inference. Included by _core.pyx."""


def batch_norm_training(src=..., gamma=None, beta=None, *, epsilon=..., data_format="NXC",
                        running_mean=None, running_variance=None, exponential_avg_factor=None,
                        correction=None, src_1=None, relu=False, workspace=None, out=None,
                        num_threads=None, exact=False, **refused):
    """Batch normalization with the statistics of the batch itself.

    For each channel, over its M elements::

        mean     = sum(src) / M
        variance = sum((src - mean)**2) / M
        dst      = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, if requested, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        What is normalized: any src that `batch_norm_backward` accepts, of float32, float64, float16
        or bfloat16, with at least two dimensions and any strides.
    gamma, beta : array, shape (C,), optional
        The scale and the shift. Both have the same dtype: float64, src's, or (unless src is
        float64) float32. None means a scale of ones, a shift of zeros.
    epsilon : float
        Added to the variance: finite, at least 0.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: on the last axis, or on axis 1.
    running_mean, running_variance : ndarray, shape (C,), optional
        Statistics to keep for inference, updated in place after everything else has succeeded. Each
        may have any dtype that src may have. In 16-bit types, updates below half an ulp are lost.
        Pass both with exponential_avg_factor and correction, or none of these four.
    exponential_avg_factor : float, optional
        The weight of the batch, any finite number:
        ``running = (1 - factor) * running + factor * batch``. With 1, the old values are ignored.
        There is no default, and ``momentum`` is not accepted, because packages disagree on both.
    correction : {0, 1}, optional
        The running variance is updated with ``sum((src - mean)**2) / (M - correction)`` of the
        batch. PyTorch and TensorFlow use 1; oneDNN, Flax and Keras use 0.
    src_1 : array, optional
        Added to the result before the ReLU; of src's shape and dtype.
    relu : bool, optional
        If True, results that are 0 or less become 0; a NaN stays.
    workspace : ndarray of uint8, shape (ceil(src.size / 8),), optional
        A contiguous array in which the call records which elements the ReLU passed, for
        `batch_norm_backward`. It needs ``relu=True``. Each element has one bit, in the order of
        src's axes in memory. The first element has the lowest bit of the first byte.
    out : tuple (dst, mean, variance), optional
        Arrays to write to; any of them may be None. ``dst`` may occupy exactly the memory of src or
        src_1. ``mean`` and ``variance`` may be float64 with data of any dtype; gamma and beta, if
        given, must then be float64 too.
    num_threads : int, optional
        As for `batch_norm_backward`.
    exact : bool, optional
        If True, the sums are exact and rounded once. The bits of the result then depend on the
        values alone, and data in parts gives the same bits (see `batch_norm_training_reduce`). A
        call takes 1.3 to 7.2 times as long, or up to 48 times with fewer than a hundred elements
        per channel, and longer if exponents differ widely.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (src's shape, dtype and memory order), mean and variance (shape (C,)).
        mean and variance have the dtype of gamma and beta. Without these, they have the dtype of
        the mean or variance in `out`; if `out` has neither, float64 for float64 data, else float32.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; also a ValueError for ``correction=1`` with one element per
        channel, which has no unbiased variance.

    See Also
    --------
    batch_norm_inference : With given statistics.
    batch_norm_backward : The gradient.
    batch_norm_training_reduce, batch_norm_training_merge, batch_norm_training_apply :
        For data in parts.
    BatchNorm : As a layer.

    Notes
    -----
    If an error is raised, nothing has been written.

    src is read twice. With channels first, the second read comes from the cache if a channel's data
    fits there. With workspace, dst is also read, once. Arrays are copied in the same cases as in
    `batch_norm_backward`. The bits of the result depend only on the values and, unless exact, on
    the order of src's axes in memory.

    Unless exact, mean and variance are computed in one pass over differences from a pivot near the
    mean. So they are accurate even if the mean is far from 0. They stay accurate if squares
    overflow or underflow: elements are then scaled and summed again. A constant channel has a
    variance of 0; if epsilon is 0 too, its dst is NaN. A variance of at most 2**-150 (2**-1075 for
    float64 data) may also become 0, if the few elements that determine the pivot are equal.

    A variance too large for its dtype is Inf, and the diff_src and diff_gamma computed from it are
    0. In float16 this happens from a standard deviation of 256 on, in float32 from 1.8e19 on. A
    float64 `gamma`, or float64 ``mean`` in `out`, makes the variance float64, which has a wider
    range.

    An empty src gives an empty dst and NaN statistics. The running statistics do not change.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> dst, mean, variance = bn_ext.batch_norm_training(src, epsilon=0.0)
    >>> mean
    array([ 2., 30.])
    >>> variance.round(6)
    array([  0.666667, 466.666667])
    >>> dst.round(6)
    array([[-1.224745, -0.92582 ],
           [ 0.      , -0.46291 ],
           [ 1.224745,  1.38873 ]])

    Running statistics, as PyTorch keeps them with ``momentum=0.1``:

    >>> running_mean, running_variance = np.zeros(2), np.ones(2)
    >>> _ = bn_ext.batch_norm_training(
    ...     src, epsilon=1e-5, running_mean=running_mean, running_variance=running_variance,
    ...     exponential_avg_factor=0.1, correction=1)
    >>> running_mean, running_variance
    (array([0.2, 3. ]), array([ 1. , 70.9]))
    """
    if refused:
        refuse(batch_norm_training, refused)
    cdef Call *c = begin(TRAINING)
    try:
        c.exact = _as_flag(exact, "exact")
        convert_options(c, data_format, num_threads)
        convert(c, SRC, src)
        convert_affine(c, gamma, beta, epsilon, src_1, relu, workspace)
        convert_running(c, running_mean, running_variance, exponential_avg_factor, correction)
        return call(c, out)
    finally:
        end(c)


def batch_norm_training_reduce(src=..., *, data_format="NXC", num_threads=None, exact=False,
                               **refused):
    """First half of `batch_norm_training`: the statistics of one part of the data.

    Merge the statistics of all parts with `batch_norm_training_merge`, and pass the result to
    `batch_norm_training_apply` with each part.

    Parameters
    ----------
    src, data_format, num_threads
        As for `batch_norm_training`; src is one part.
    exact : bool, optional
        If True, the result is a state, which holds exact sums.

    Returns
    -------
    ndarray of float64, shape (4, C)
        Four rows: the mean, ``sum((src - mean)**2)`` (both 0 without elements), the number of
        elements, and a 1. Statistics that were added instead of merged are refused: their last row
        is no longer 1. A sum of squares above 1.8e308 is given divided by ``-2**64``.
    ndarray of int64, shape (k, 2, C)
        With ``exact=True``, a state: the sums of src and of ``src**2``. Nothing is rounded. k is
        20, or 111 for float64 data.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`; ValueError also if a channel has 2**53 elements or more
        (2**39 with ``exact=True``).

    Notes
    -----
    For the same array, reduce and apply give the same bits as the single call.

    States are added in the same way as those of `batch_norm_backward_reduce`.
    `batch_norm_training_stats` turns their sum into statistics.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(6.0).reshape(3, 2)
    >>> bn_ext.batch_norm_training_reduce(src)
    array([[2., 3.],
           [8., 8.],
           [3., 3.],
           [1., 1.]])
    >>> parts = src[:1], src[1:]
    >>> reduce = bn_ext.batch_norm_training_reduce
    >>> state = sum(reduce(part, exact=True) for part in parts)
    >>> np.array_equal(bn_ext.batch_norm_training_stats(state), reduce(src))
    True
    """
    if refused:
        refuse(batch_norm_training_reduce, refused)
    cdef Call *c = begin(TRAINING_REDUCE)
    try:
        c.exact = _as_flag(exact, "exact")
        convert_options(c, data_format, num_threads)
        convert(c, SRC, src)
        return call(c, None)
    finally:
        end(c)


def batch_norm_training_merge(stats):
    """Merge the statistics of parts into those of the whole, for `batch_norm_training_apply`.

    Parameters
    ----------
    stats : array of float64, shape (k, 4, C), or list or tuple of k arrays
        Statistics of k parts, each from `batch_norm_training_reduce`, or from this function if
        already merged. Iterators are not accepted, because they may be endless.

    Returns
    -------
    ndarray of float64, shape (4, C)
        As from `batch_norm_training_reduce`: per channel the mean, ``sum((src - mean)**2)``, the
        number of elements, and a 1.

    Raises
    ------
    TypeError
        If stats is neither a float64 array nor a list or tuple of float64 arrays of one shape.
    ValueError
        If the shape does not fit; if a row of counts or the last row is wrong, for instance because
        statistics were added; or if all parts together have 2**53 elements per channel or more.

    Notes
    -----
    Parts are merged in order, with the formulas of Chan, Golub and LeVeque ("Updating formulae and
    a pairwise algorithm for computing sample variances", 1979). The same parts in the same order
    give the same bits every time, but not always those of one call on all data. Parts without
    elements change nothing. A single part is returned with the same bits.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> parts = np.array([[1.0], [3.0]]), np.array([[8.0]])
    >>> stats = [bn_ext.batch_norm_training_reduce(part) for part in parts]
    >>> bn_ext.batch_norm_training_merge(stats)
    array([[ 4.],
           [26.],
           [ 3.],
           [ 1.]])
    """
    given = _as_array(stats, "stats")
    if given.dtype != np.float64:
        raise _wrong_dtype("stats", given, "float64")
    if given.ndim != 3 or given.shape[1] != MARK + 1:
        raise ValueError(f"stats: expected shape (k, {MARK + 1}, C), got {given.shape}")
    given = as_dense(given)
    cdef const double[:, :, ::1] parts = given
    cdef Py_ssize_t i, channels = parts.shape[2]
    cdef double before = 0, own, total
    whole = np.zeros((MARK + 1, channels))
    whole[MARK] = 1
    cdef double[:, ::1] merged = whole
    for i in range(parts.shape[0] if channels else 0):
        own = count_of_sums(&parts[i, 0, 0], channels, True, "stats")
        if own == 0:
            continue
        total = before + own
        if total >= <double>(<int64_t>1 << LOG2_COUNTED):
            raise ValueError(
                f"stats: expected fewer than 2**{LOG2_COUNTED} elements per channel over all "
                f"parts, got {int(total)}"
            )
        with _DefaultMode():
            if before == 0:  # bn_merge_stats would make squares NaN if the mean is infinite
                whole[:] = given[i]
            else:
                bn_merge_stats(&merged[0, 0], &parts[i, 0, 0], channels, before, own)
        before = whole[COUNT] = total
    whole[np.isnan(whole)] = np.nan  # the canonical NaN, as in C
    return whole


def batch_norm_training_apply(src=..., stats=..., gamma=None, beta=None, *, epsilon=...,
                              data_format="NXC", running_mean=None, running_variance=None,
                              exponential_avg_factor=None, correction=None, src_1=None,
                              relu=False, workspace=None, out=None, num_threads=None, **refused):
    """Second half of `batch_norm_training`: dst of one part, from the statistics of all parts.

    Parameters
    ----------
    src, src_1
        As for `batch_norm_training`; one part.
    stats : array of float64, shape (4, C)
        The statistics of all parts, including this one: what `batch_norm_training_merge` or, for
        exact sums, `batch_norm_training_stats` returned.
    gamma, beta, epsilon, data_format, relu, workspace, out, num_threads
        As for `batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `batch_norm_training`. Pass them with one part only, because each call updates the
        running statistics.

    Returns
    -------
    BatchNormTraining
        dst of this part; mean and variance of the whole, the same for every part.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`; ValueError also if stats have another shape, were added
        instead of merged, or count fewer elements than this part has.

    Examples
    --------
    A batch split into two parts:

    >>> import numpy as np, bn_ext
    >>> src = np.random.default_rng(0).standard_normal((8, 4))
    >>> parts = [src[:5], src[5:]]
    >>> stats = bn_ext.batch_norm_training_merge(
    ...     [bn_ext.batch_norm_training_reduce(part) for part in parts])
    >>> dst = np.concatenate([
    ...     bn_ext.batch_norm_training_apply(part, stats, epsilon=1e-5).dst for part in parts])
    >>> np.allclose(dst, bn_ext.batch_norm_training(src, epsilon=1e-5).dst, rtol=1e-12)
    True
    """
    if refused:
        refuse(batch_norm_training_apply, refused)
    cdef Call *c = begin(TRAINING_APPLY)
    try:
        convert_options(c, data_format, num_threads)
        convert(c, SRC, src)
        convert_affine(c, gamma, beta, epsilon, src_1, relu, workspace)
        convert_sums(c, stats)
        convert_running(c, running_mean, running_variance, exponential_avg_factor, correction)
        return call(c, out)
    finally:
        end(c)


def batch_norm_inference(src=..., mean=..., variance=..., gamma=None, beta=None, *, epsilon=...,
                         data_format="NXC", src_1=None, relu=False, workspace=None, out=None,
                         num_threads=None, **refused):
    """Batch normalization with given statistics.

    For each channel::

        dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, if requested, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src, src_1, epsilon, data_format, relu, workspace, num_threads
        As for `batch_norm_training`.
    mean, variance
        As for `batch_norm_backward`.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, in mean's dtype. None means a scale of ones, a shift of zeros.
    out : ndarray, optional
        Array to write to, of src's shape and dtype. It may occupy exactly the memory of src or
        src_1.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    See Also
    --------
    batch_norm_training : With the statistics of the batch.
    batch_norm_backward : The gradient, with ``is_training=False``.

    Notes
    -----
    src is read once. Everything else is as for `batch_norm_training`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> mean, variance = np.array([1.0, 0.0]), np.array([4.0, 100.0])
    >>> bn_ext.batch_norm_inference(src, mean, variance, epsilon=0.0)
    array([[0., 1.],
           [1., 3.]])
    """
    if refused:
        refuse(batch_norm_inference, refused)
    cdef Call *c = begin(INFERENCE)
    try:
        convert_options(c, data_format, num_threads)
        convert(c, SRC, src)
        convert(c, MEAN, mean)
        convert(c, VARIANCE, variance)
        convert_affine(c, gamma, beta, epsilon, src_1, relu, workspace)
        return call(c, out)
    finally:
        end(c)

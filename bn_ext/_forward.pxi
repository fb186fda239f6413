"""The forward pass: training, its halves, inference. Included by _core.pyx."""


def batch_norm_training(src, gamma=None, beta=None, *, epsilon=..., data_format="NXC",
                        running_mean=None, running_variance=None, exponential_avg_factor=None,
                        correction=None, src_1=None, relu=False, workspace=None, out=None,
                        num_threads=None, exact=False, **refused):
    """Batch normalization with the statistics of the batch itself.

    For each channel, over its M elements::

        mean     = sum(src) / M
        variance = sum((src - mean)**2) / M
        dst      = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, where asked for, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        float32, float64, float16 or bfloat16, at least two dimensions, any strides: whatever
        `batch_norm_backward` takes.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, of one dtype: float64 with any data, float32 with any but
        float64 data, or the data's own. None means ones, and zeros.
    epsilon : float
        Added to the variance: finite, at least 0.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: on the last axis, or on axis 1.
    running_mean, running_variance : ndarray, shape (C,), optional
        Statistics to keep for inference, changed in place once everything else has succeeded; of
        any dtype that src may have. In 16 bits, steps below half an ulp are lost. These two and
        the next two are given together, or not at all.
    exponential_avg_factor : float, optional
        The weight of the batch: ``running = (1 - factor) * running + factor * batch``, any finite
        number. With 1, what was there before is not read. There is no default, and ``momentum`` is
        not accepted, because packages disagree on both.
    correction : {0, 1}, optional
        The running variance is that of the batch divided by ``M - correction``: 1 in PyTorch and
        TensorFlow, 0 in oneDNN, Flax and Keras.
    src_1 : array, optional
        Added to the result, before ReLU: src's shape and dtype.
    relu : bool, optional
        If True, results that are 0 or less become 0; a NaN stays.
    workspace : ndarray of uint8, shape (ceil(src.size / 8),), optional
        Where to keep, for `batch_norm_backward`, which elements ReLU let pass; with ``relu=True``.
        One bit each, in the order of src's axes in memory, the first in the lowest bit of the first
        byte; contiguous.
    out : tuple (dst, mean, variance), optional
        Arrays to write to; any of them may be None. ``dst`` may be exactly src or exactly src_1.
        ``mean`` and ``variance`` may be float64 with any data, if gamma and beta are too.
    num_threads : int, optional
        As for `batch_norm_backward`.
    exact : bool, optional
        If True, sums are exact until they are rounded: the bits of the result then depend on the
        values alone, and are those of any parts of the data, see `batch_norm_training_reduce`.
        src is read once more, and squares take more to sum: 3 to 6 times as long in all, 10 times
        with few elements in thousands of channels, and longer where exponents differ widely.
        Where the square of a deviation from the mean overflows in float32 (float64, for float64
        data: beyond 2**64, or 2**512), the variance is Inf.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (src's shape, dtype and memory order), mean and variance (shape (C,)),
        in the dtype of gamma and beta; without those, in that of the first of both in `out`;
        without that too, float64 with float64 data, else float32.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; ValueError for ``correction=1`` with one element per channel.

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

    src is read twice, and while a channel's data fits the cache, only once from memory; with
    workspace, dst is read once more. Arrays are copied in the same cases as by
    `batch_norm_backward`. The bits of the result depend only on the values and on the order of
    src's axes in memory.

    mean and variance are computed in one pass about a pivot near the mean, so that they are right
    however far the mean lies from 0, and where squares overflow or vanish. A constant channel has
    variance 0 (and dst NaN, if epsilon is 0 too); so may one of a variance up to 2**-150 (float64
    data: 2**-1075), if the few elements that the pivot is made of are alike. But a variance is Inf
    where its dtype does not reach, and the gradient from it 0: in float16 from a deviation of 256
    on, in float32 from 1.8e19 on. float64 vectors (`gamma`, or ``mean`` in `out`) reach further; of
    float64 data, M times the variance must stay below 1.8e308. With ``exact=True`` there are two
    passes, and mean and variance are as near, but where squares overflow.

    An empty problem gives an empty dst and NaN statistics, and leaves running ones alone.

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
        _refuse_unknown("batch_norm_training", refused)
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


def batch_norm_training_reduce(src, *, data_format="NXC", num_threads=None, exact=False,
                               mean=None, **refused):
    """First half of `batch_norm_training`: the statistics of one part of the data.

    Merge those of all parts by `batch_norm_training_merge` and pass them to
    `batch_norm_training_apply` for each part.

    Parameters
    ----------
    src, data_format, num_threads
        As for `batch_norm_training`; src is one part.
    exact : bool, optional
        If True, the result is a state: exact sums.
    mean : array, shape (C,), optional
        With ``exact=True`` alone: what is taken from src before it is summed, float32 or float64
        (of float16 and bfloat16 data also theirs), rounded to float32 unless the data is float64.
        None means zeros.

    Returns
    -------
    ndarray of float64, shape (4, C)
        Of each channel the mean, ``sum((src - mean)**2)`` (both 0 without elements), the number of
        its elements, and a 1: statistics that were added, and not merged, are known by it, and
        refused.
    ndarray of int64, shape (k, 2, C)
        With ``exact=True``, a state: the sums of ``src - mean`` and of its square, each rounded as
        elements are computed (in float32, or float64 for float64 data), and nothing else is. k is
        11, and 57 for float64 data.

    Notes
    -----
    Over the same array, reduce and apply give the same bits as the single call. Errors are those
    of `batch_norm_training`.

    States are added, as those of `batch_norm_backward_reduce` are. Statistics that depend on the
    values alone take two passes, since the squares are about the mean: the first for the mean, with
    ``mean=None``; the second about that (`batch_norm_training_stats`).

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
    >>> mean = bn_ext.batch_norm_training_stats(state)[0]
    >>> state = sum(reduce(part, exact=True, mean=mean) for part in parts)
    >>> stats = bn_ext.batch_norm_training_stats(state, mean)
    >>> np.array_equal(stats, bn_ext.batch_norm_training_reduce(src))
    True
    """
    if refused:
        _refuse_unknown("batch_norm_training_reduce", refused)
    cdef Call *c = begin(TRAINING_REDUCE)
    try:
        c.exact = _as_flag(exact, "exact")
        if mean is not None and not c.exact:
            raise ValueError("mean: expected with exact=True alone")
        convert(c, MEAN, mean)
        convert_options(c, data_format, num_threads)
        convert(c, SRC, src)
        return call(c, None)
    finally:
        end(c)


def batch_norm_training_merge(stats):
    """Statistics of all parts, for `batch_norm_training_apply`, from those of each.

    Parameters
    ----------
    stats : array of float64, shape (k, 4, C), or list or tuple of k arrays
        What `batch_norm_training_reduce` returned for each of k parts, or this function for
        several. No iterator, which may have no end.

    Returns
    -------
    ndarray of float64, shape (4, C)
        As `batch_norm_training_reduce` returns them: the mean of each channel,
        ``sum((src - mean)**2)``, the number of elements, and a 1.

    Raises
    ------
    TypeError
        If stats is neither an array of float64, nor a list or tuple of such with one shape.
    ValueError
        If shapes do not fit, or some are no statistics: because they were added, say.

    Notes
    -----
    Parts are merged in order, by the formulae of Chan, Golub and LeVeque ("Updating formulae and a
    pairwise algorithm for computing sample variances", 1979), so the same parts give the same bits
    every time, but not bit for bit those of the whole. Parts without elements change nothing, and
    one part alone comes back bit for bit.

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
        raise wrong_dtype("stats", given, "float64")
    if given.ndim != 3 or given.shape[1] != MARK + 1:
        raise ValueError(f"stats: expected shape (k, {MARK + 1}, C), got {given.shape}")
    given = as_dense(given)
    cdef const double[:, :, ::1] parts = given
    cdef Py_ssize_t i, channels = parts.shape[2]
    cdef double before = 0, own, total
    whole = np.zeros((MARK + 1, channels))
    whole[MARK] = 1
    for i in range(parts.shape[0] if channels else 0):
        own = count_of_sums(&parts[i, 0, 0], channels, True, "stats")
        if own == 0:
            continue
        total = before + own
        if total >= <double>(<int64_t>1 << LOG2_COUNTED):
            raise ValueError(
                f"stats: expected less than 2**{LOG2_COUNTED} elements per channel over all parts"
            )
        with _DefaultMode():
            if before == 0:  # Inf - 0 would make a NaN of its squares
                whole[:] = given[i]
            else:
                off = given[i, 0] - whole[0]
                whole[0] += off * (own / total)
                # So grouped it overflows only where the sum does.
                whole[1] += given[i, 1] + off * (off * (before * (own / total)))
        before = whole[COUNT] = total
    return whole


def batch_norm_training_apply(src, stats, gamma=None, beta=None, *, epsilon=...,
                              data_format="NXC", running_mean=None, running_variance=None,
                              exponential_avg_factor=None, correction=None, src_1=None,
                              relu=False, workspace=None, out=None, num_threads=None, **refused):
    """Second half of `batch_norm_training`: dst of a part, from the statistics of all.

    Parameters
    ----------
    src, src_1
        As for `batch_norm_training`; one part.
    stats : array of float64, shape (4, C)
        What `batch_norm_training_reduce` returned, merged over all parts, this one too, by
        `batch_norm_training_merge`.
    gamma, beta, epsilon, data_format, relu, workspace, out, num_threads
        As for `batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `batch_norm_training`; give them with one part alone: each call takes a step.

    Returns
    -------
    BatchNormTraining
        dst of this part; mean and variance of the whole, the same for every part. Errors are those
        of `batch_norm_training`.

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
        _refuse_unknown("batch_norm_training_apply", refused)
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


def batch_norm_inference(src, mean, variance, gamma=None, beta=None, *, epsilon=...,
                         data_format="NXC", src_1=None, relu=False, workspace=None, out=None,
                         num_threads=None, **refused):
    """Batch normalization with given statistics.

    For each channel::

        dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, where asked for, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src, src_1, epsilon, data_format, relu, workspace, num_threads
        As for `batch_norm_training`.
    mean, variance
        As for `batch_norm_backward`.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, in mean's dtype. None means ones, and zeros.
    out : ndarray, optional
        Array to write to, of src's shape and dtype; it may be exactly src or exactly src_1.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    See Also
    --------
    batch_norm_training : With the statistics of the batch.
    batch_norm_backward : The gradient, with ``is_training=False``.

    Notes
    -----
    src is read once. All else, errors too, is as for `batch_norm_training`.

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
        _refuse_unknown("batch_norm_inference", refused)
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

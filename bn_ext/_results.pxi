"""What calls return. Included by _core.pyx."""

BatchNormGradients = namedtuple(
    "BatchNormGradients", ("diff_src", "diff_gamma", "diff_beta"), module="bn_ext"
)
BatchNormGradients.__doc__ = """Result of `batch_norm_backward`.

Attributes
----------
diff_src : ndarray
    Gradient with respect to ``src``, in src's shape, dtype and memory order.
diff_gamma, diff_beta : ndarray or None
    Gradients with respect to the scale and the shift, shape (C,), in the dtype of
    the statistics; None with ``param_grads=False``.
"""

BatchNormAddGradients = namedtuple(
    "BatchNormAddGradients", (*BatchNormGradients._fields, "diff_src_1"), module="bn_ext"
)
BatchNormAddGradients.__doc__ = """Result of `batch_norm_backward` with ``diff_src_1=True``.

Attributes
----------
diff_src, diff_gamma, diff_beta
    As in `BatchNormGradients`.
diff_src_1 : ndarray
    Gradient with respect to what the forward pass added, ``src_1``, in src's shape, dtype and
    memory order: diff_dst where ReLU let the element pass, 0 elsewhere.
"""

BatchNormTraining = namedtuple(
    "BatchNormTraining", ("dst", "mean", "variance"), module="bn_ext"
)
BatchNormTraining.__doc__ = """Result of `batch_norm_training`.

Attributes
----------
dst : ndarray
    The normalized src, in src's shape, dtype and memory order.
mean, variance : ndarray
    Statistics of each channel, shape (C,); the variance is the biased one, divided by the
    number of elements, which is what `batch_norm_backward` takes.
"""

BatchNormDoubleBackward = namedtuple(
    "BatchNormDoubleBackward", ("diff_src", "diff_diff_dst", "diff_gamma"), module="bn_ext"
)
BatchNormDoubleBackward.__doc__ = """Result of `batch_norm_double_backward`.

Attributes
----------
diff_src, diff_diff_dst : ndarray
    Gradients with respect to ``src`` and ``diff_dst``, in src's shape, dtype and memory order.
diff_gamma : ndarray
    Gradient with respect to ``gamma``, shape (C,), in the dtype of the statistics.
"""

"""The named tuples that calls return; the functions describe them. Included by _core.pyx."""

BatchNormTraining = namedtuple("BatchNormTraining", "dst mean variance", module="bn_ext")
BatchNormTraining.__doc__ = """Result of `batch_norm_training`."""

BatchNormGradients = namedtuple(
    "BatchNormGradients", "diff_src diff_gamma diff_beta", module="bn_ext")
BatchNormGradients.__doc__ = """Result of `batch_norm_backward`."""

BatchNormAddGradients = namedtuple(
    "BatchNormAddGradients", (*BatchNormGradients._fields, "diff_src_1"), module="bn_ext")
BatchNormAddGradients.__doc__ = """Result of `batch_norm_backward` with ``diff_src_1=True``."""

BatchNormDoubleBackward = namedtuple(
    "BatchNormDoubleBackward", "diff_src diff_diff_dst diff_gamma", module="bn_ext")
BatchNormDoubleBackward.__doc__ = """Result of `batch_norm_double_backward`."""

"""bn_ext, channels last and first."""

from functools import partial
from types import SimpleNamespace

import bn_ext

NAME, PACKAGES, LAYOUT, OWN = "bn_ext", ["bn_ext"], "NXC", ()


def functions(layout):
    return {
        "training": partial(bn_ext.batch_norm_training, data_format=layout),
        "inference": partial(bn_ext.batch_norm_inference, data_format=layout),
        "backward": partial(bn_ext.batch_norm_backward, data_format=layout),
        "double_backward": partial(bn_ext.batch_norm_double_backward, data_format=layout),
    }


globals().update(functions("NXC"))
channels_first = SimpleNamespace(**functions("NCX"))

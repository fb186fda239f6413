"""At each allocation of a call in turn, collected garbage changes src's dtype.

Before the check, the call is refused; after it, the change no longer matters.
"""

import gc

import numpy as np

import bn_ext

dy, v = np.ones((16, 16), np.float32), np.ones(16, np.float32)


class Cycle:
    def __init__(self, target):
        self.me, self.target = self, target

    def __del__(self):
        self.target.dtype = np.uint8


class Epsilon:
    def __init__(self, target, after):
        self.target, self.after = target, after

    def __float__(self):
        gc.collect()
        gc.disable()
        Cycle(self.target)
        self.pairs = [(i, i) for i in range(3000)]  # else tuples come from a free list, uncounted
        gc.set_threshold(len(self.pairs) + self.after)
        gc.enable()
        return 0.5


before = gc.get_threshold()
for after in range(40):
    x = np.ones((16, 16), np.float32)
    try:
        grads = bn_ext.batch_norm_backward(x, dy, v, v, epsilon=Epsilon(x, after))
    except TypeError as error:
        assert str(error).startswith("src: expected float32"), error  # noqa: PT017
    else:
        assert grads.diff_src.dtype == np.float32, after
        assert grads.diff_src.nbytes == 1024, after
    gc.set_threshold(*before)

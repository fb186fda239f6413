"""Jittor: the variance of many rows, each 1 or -1, in batch normalization on a CPU."""

import os

os.environ |= {"nvcc_path": "", "use_mkl": "0"}  # CPUs only, and no download
import jittor as jt
import numpy as np

rows = 70_002
src = jt.array(np.where(np.arange(rows) % 2, 1, -1).astype("float32").reshape(rows, 1))
layer = jt.nn.BatchNorm(1, momentum=1.0)
layer(src)
print("jittor", jt.__version__)
print(f"variance {layer.running_var.numpy()[0]:.7f} - by the formula, 1")
print(f"mean of {rows} ones {(src * src).mean(dims=[0]).numpy()[0]:.7f}")

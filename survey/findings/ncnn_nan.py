"""ncnn: a variance of NaN."""

import tempfile
from pathlib import Path

import ncnn
import numpy as np

x = np.array([1.0, 2.0, 3.0], "f4")
gamma, mean, beta = np.ones(3, "f4"), np.zeros(3, "f4"), np.zeros(3, "f4")
variance = np.array([4.0, np.nan, 4.0], "f4")
net = ncnn.Net()
with tempfile.TemporaryDirectory() as folder:
    text, weights = (Path(folder) / name for name in ("net.param", "net.bin"))
    text.write_text("7767517\n2 2\nInput src 0 1 src\nBatchNorm bn 1 1 src dst 0=3 1=1e-5\n")
    weights.write_bytes(b"".join(a.tobytes() for a in (gamma, mean, variance, beta)))
    net.load_param(str(text))
    net.load_model(str(weights))
run = net.create_extractor()
run.input("src", ncnn.Mat(x).clone())
print("ncnn", ncnn.__version__, "variance", variance)
print("dst", np.array(run.extract("dst")[1]), "- by the formula, [0.5 nan 1.5]")

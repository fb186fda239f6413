"""ncnn: an image of no positions."""

import tempfile
from pathlib import Path

import ncnn
import numpy as np

net, vector = ncnn.Net(), np.ones(3, "f4")
with tempfile.TemporaryDirectory() as folder:
    text, weights = (Path(folder) / name for name in ("net.param", "net.bin"))
    text.write_text("7767517\n2 2\nInput src 0 1 src\nBatchNorm bn 1 1 src dst 0=3\n")
    weights.write_bytes(vector.tobytes() * 4)
    net.load_param(str(text))
    net.load_model(str(weights))
print("ncnn", ncnn.__version__, flush=True)
run = net.create_extractor()
run.input("src", ncnn.Mat(np.zeros((3, 0, 4), "f4")).clone())
print("dst of shape (3, 0, 4):", flush=True)
print(run.extract("dst"))

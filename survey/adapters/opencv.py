"""OpenCV's networks."""

import cv2
import numpy as np

from . import demand
from .onnx import VECTORS, model_of

NAME, PACKAGES, LAYOUT, OWN = "OpenCV", ["cv2"], "NCX", ()


def inference(src, mean, variance, gamma, beta, epsilon):
    constants = dict(zip(VECTORS, map(demand, (gamma, beta, mean, variance)), strict=True))
    model = model_of(src.shape, epsilon, False, **constants).SerializeToString()
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
    net.setInput(src)
    return net.forward()

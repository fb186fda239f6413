"""Whole steps of networks in torch, with its own batch normalization and with bn_ext's.

A step: forward, loss, backward, and an optimizer that changes the weights. Except for the batch
normalization, the networks are the same, and they start from the same weights. Each runs in a
process of its own; that of torch alone has not imported bn_ext. For docs/howto/torch.md.
"""

import importlib
import sys
from itertools import pairwise, product

import torch
from torch import nn

from .turns import medians, serve


class Norm(nn.Module):
    """Batch normalization, an addition if there is something to add, and an activation."""

    def __init__(self, channels, activation=None, dims=2, fuse=False):
        super().__init__()
        kind = "BatchNorm1d" if dims == 1 else "BatchNorm2d"
        self.fused = fuse and activation is nn.ReLU
        package = importlib.import_module("bn_ext.torch") if self.fused else nn
        made = getattr(package, kind)
        self.norm = made(channels, relu=True) if self.fused else made(channels)
        self.activation = activation() if activation and not self.fused else nn.Identity()

    def forward(self, x, added=None):
        if self.fused:
            return self.norm(x, added)
        x = self.norm(x)
        return self.activation(x if added is None else x + added)


class Residual(nn.Module):
    """A residual block: layers, and a path past them, which may have layers of its own."""

    def __init__(self, layers, past, last):
        super().__init__()
        self.layers, self.past, self.last = nn.Sequential(*layers), past, last

    def forward(self, x):
        return self.last(self.layers(x), self.past(x))


def conv(channels, to, size=1, stride=1, groups=1):
    return nn.Conv2d(channels, to, size, stride, size // 2, groups=groups, bias=False)


def head(channels, classes=100):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def resnet18(fuse):
    def norm(channels, activation=nn.ReLU):
        return Norm(channels, activation, fuse=fuse)

    layers, channels = [conv(3, 64, 7, 2), norm(64), nn.MaxPool2d(3, 2, 1)], 64
    for to, strides in ((64, (1, 1)), (128, (2, 1)), (256, (2, 1)), (512, (2, 1))):
        for stride in strides:
            inner = [conv(channels, to, 3, stride), norm(to), conv(to, to, 3)]
            past = nn.Identity()
            if stride > 1:
                past = nn.Sequential(conv(channels, to, 1, stride), norm(to, None))
            layers.append(Residual(inner, past, norm(to)))
            channels = to
    return nn.Sequential(*layers, *head(512)), (16, 3, 112, 112)


def mobilenet_v2(fuse):
    layers, channels = [conv(3, 32, 3, 2), Norm(32, nn.ReLU6)], 32
    for factor, to, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for stride in (first, *(1,) * (count - 1)):
            wide = channels * factor
            inner = [conv(channels, wide), Norm(wide, nn.ReLU6)] if factor > 1 else []
            inner += [conv(wide, wide, 3, stride, wide), Norm(wide, nn.ReLU6), conv(wide, to)]
            if stride == 1 and channels == to:
                layers.append(Residual(inner, nn.Identity(), Norm(to)))
            else:
                layers += [*inner, Norm(to)]
            channels = to
    layers += [conv(channels, 1280), Norm(1280, nn.ReLU6), *head(1280)]
    return nn.Sequential(*layers), (16, 3, 112, 112)


def mlp(fuse):
    sizes, layers = (784, 1024, 1024, 1024), []
    for size, to in pairwise(sizes):
        layers += [nn.Linear(size, to, bias=False), Norm(to, nn.ReLU, 1, fuse)]
    return nn.Sequential(*layers, nn.Linear(1024, 100)), (512, 784)


NETWORKS = {"ResNet-18": resnet18, "MobileNetV2": mobilenet_v2, "MLP": mlp}


#: {way: what its process imports before torch}
WAYS = {"torch": "", "behind": "import bn_ext", "bn_ext": "import torch, bn_ext.torch",
        "fused": "import torch, bn_ext.torch"}  # fmt: skip


def run(way, name, dtype, layout, threads):
    """In a process of its own: a step, when it is asked for."""
    if ("bn_ext" in sys.modules) == (way == "torch"):
        raise RuntimeError("bn_ext is imported where it must not be, or not where it must be")
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    net, dims = NETWORKS[name](way == "fused")
    if way in ("bn_ext", "fused"):
        net = importlib.import_module("bn_ext.torch").convert(net)
    options = {"dtype": getattr(torch, dtype)}
    if len(dims) == 4:
        formats = {"NXC": torch.channels_last, "NCX": torch.contiguous_format}
        options["memory_format"] = formats[layout]
    x, target = torch.randn(dims).to(**options), torch.randint(100, dims[:1])
    net = net.to(**options)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).float(), target).backward()
        optimizer.step()

    serve(step)


def seconds_of(name, dtype, layout, threads, seconds):
    """Median seconds of a step, in each way that the network allows."""
    call = f"run(WAY, {name!r}, {dtype!r}, {layout!r}, {threads})"
    programs = {
        way: f"{first}; WAY = {way!r}; from benchmarks.networks import run; {call}".lstrip("; ")
        for way, first in WAYS.items()
        if (way, name) != ("fused", "MobileNetV2")  # ReLU6 cannot be fused
    }
    return medians(programs, seconds)


def report(options):
    """Every network, in each dtype and memory format, on these numbers of threads."""
    from . import pages

    lines = []
    for name, dtype, layout, threads in product(
        NETWORKS, options.dtypes, options.layouts, options.threads
    ):
        if name == "MLP" and layout == "NCX":
            continue
        times = seconds_of(name, dtype, layout, threads, options.seconds)
        cells = [f"{times['torch'] / times[way]:.2f}" if way in times else ""
                 for way in WAYS if way != "torch"]  # fmt: skip
        where = {"NXC": "last", "NCX": "first"}[layout] if name != "MLP" else ""
        used = threads or torch.get_num_threads()
        lines.append([name, dtype, where, used, f"{1e3 * times['torch']:.1f}", *cells])
        print(*lines[-1], flush=True)
    most = max(line[3] for line in lines)
    heading = ["network", "dtype", "channels", "threads", "torch, ms", "torch, behind bn_ext",
               "bn_ext's layers", "ReLU, addition fused"]  # fmt: skip
    pages.put_rows("networks", "docs/howto/torch.md", pages.run(["torch"]), heading, lines,
                   lambda line: line[3] == most)  # fmt: skip

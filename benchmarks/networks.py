"""Whole steps of networks in torch, with its own batch normalization and with bn_ext's.

A step: forward, loss, backward, and an optimizer that changes the weights. Except for the batch
normalization, the networks are the same, and they start from the same weights. Their steps take
turns. For docs/howto/torch.md.
"""

import copy
from functools import partial
from itertools import pairwise, product
from statistics import median

import torch
from torch import nn

import bn_ext.torch
from bn_ext._bench.timing import burst, in_turns, work

from . import pages


class Norm(nn.Module):
    """Batch normalization, an addition if there is something to add, and an activation."""

    def __init__(self, channels, activation=None, dims=2, fuse=False):
        super().__init__()
        kind = "BatchNorm1d" if dims == 1 else "BatchNorm2d"
        self.fused = fuse and activation is nn.ReLU
        made = getattr(bn_ext.torch if self.fused else nn, kind)
        self.norm = made(channels, relu=True) if self.fused else made(channels)
        self.activation = activation() if activation and not self.fused else nn.Identity()

    def forward(self, x, more=None):
        if self.fused:
            return self.norm(x, more)
        x = self.norm(x)
        return self.activation(x if more is None else x + more)


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


def burst_of(net, x, target):
    """A function that times some steps."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).float(), target).backward()
        optimizer.step()

    return partial(burst, step, work("nothing"))


def seconds_of(name, dtype, layout, threads, seconds):
    """Median seconds of a step: {"torch", "bn_ext" and, if the network allows fusion, "fused"}"""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net, dims = NETWORKS[name](False)
    nets = {"torch": net, "bn_ext": bn_ext.torch.convert(copy.deepcopy(net))}
    if name != "MobileNetV2":  # ReLU6 cannot be fused
        nets["fused"] = bn_ext.torch.convert(NETWORKS[name](True)[0])
        nets["fused"].load_state_dict(net.state_dict())
    options = {"dtype": getattr(torch, dtype)}
    if len(dims) == 4:
        formats = {"NXC": torch.channels_last, "NCX": torch.contiguous_format}
        options["memory_format"] = formats[layout]
    x, target = torch.randn(dims).to(**options), torch.randint(100, dims[:1])
    bursts = {kind: burst_of(each.to(**options), x, target) for kind, each in nets.items()}
    return {
        kind: median(t.call for t in times) for kind, times in in_turns(bursts, seconds).items()
    }


def report(options):
    """Every network, in each dtype and memory format, on these numbers of threads."""
    counts, lines = [n or torch.get_num_threads() for n in options.threads], []
    for name, dtype, layout, threads in product(NETWORKS, options.dtypes, options.layouts, counts):
        if name == "MLP" and layout == "NCX":
            continue
        times = seconds_of(name, dtype, layout, threads, options.seconds)
        cells = [f"{times['torch'] / times[kind]:.2f}" if kind in times else ""
                 for kind in ("bn_ext", "fused")]  # fmt: skip
        where = {"NXC": "last", "NCX": "first"}[layout] if name != "MLP" else ""
        lines.append([name, dtype, where, threads, f"{1e3 * times['torch']:.1f}", *cells])
        print(*lines[-1])
    heading = ["network", "dtype", "channels", "threads", "torch's step, ms", "torch / bn_ext",
               "torch / bn_ext with ReLU and addition fused"]  # fmt: skip
    pages.put_rows("networks", "docs/howto/torch.md", pages.run(["torch"]), heading, lines,
                   lambda line: line[3] == max(counts))  # fmt: skip

"""torch's own samples of batch normalization, on bn_ext's kernels; its checks of gradients.

pytest -m suites        needs torch and what its testing modules import
"""

import copy
import functools
import itertools

import numpy as np
import pytest
from cases import DATA_DTYPES, SHORT
from judged import judge

import bn_ext

pytestmark = [pytest.mark.suites, pytest.mark.filterwarnings("ignore")]

OPERATORS = [
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "nn.functional.batch_norm",
]
MODULES = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]
#: With 16-bit data, modules may have float32 parameters.
VECTORS = {name: "float32" if name in SHORT else name for name in DATA_DTYPES}
in_every_dtype = pytest.mark.parametrize("name", DATA_DTYPES)


@pytest.fixture
def torch():
    import torch

    import bn_ext.torch  # noqa: F401

    torch.manual_seed(0)
    return torch


def arrangements(torch):
    """The same values in other memory."""
    from torch.testing._internal.common_utils import noncontiguous_like

    last = {4: torch.channels_last, 5: torch.channels_last_3d}

    def channels_last(tensor):
        return tensor.clone(memory_format=last.get(tensor.ndim, torch.contiguous_format))

    return [torch.Tensor.clone, noncontiguous_like, channels_last]


def outcome(torch, call, leaves, state, name):
    """Results, gradients of the first of them, and what was updated."""
    found = call()
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    found = [each for each in found if each.is_floating_point()]
    rng = np.random.default_rng(1)
    diff = torch.from_numpy(rng.standard_normal(found[0].shape)).to(getattr(torch, name))
    grads = torch.autograd.grad(found[0], leaves, diff.to(found[0].dtype))
    return [each.detach().to(torch.float64).numpy() for each in (*found, *grads, *state)]


def check(torch, attempt, name, adapted=None):
    """`attempt(dtype)` on our kernels is as near to that on exact ones as their terms allow; and so
    is `adapted(dtype)`, which calls bn_ext.torch.
    """
    import aten

    with aten.registered(*aten.EXACT):
        right = attempt(torch.float64)
    with aten.registered(*aten.SIZES):
        sizes = attempt(torch.float64)
    with aten.registered(*aten.OURS) as calls:
        found = attempt(getattr(torch, name))
    judge(found, right, sizes, name)
    if adapted:
        judge(adapted(getattr(torch, name)), right, sizes, name)
    return [*map(aten.OURS.index, calls)]


@in_every_dtype
@pytest.mark.parametrize("operator", OPERATORS)
def test_opinfo(torch, ran, operator, name):
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [op for op in op_db if (op.name, op.variant_test_name) == (operator, "")]
    samples = info.sample_inputs("cpu", getattr(torch, name), requires_grad=True)
    for sample in samples:
        for arrange in arrangements(torch):

            def attempt(dtype, sample=sample, arrange=arrange, call=info.op):
                tensors = [
                    each
                    if not isinstance(each, torch.Tensor)
                    else arrange(each.detach().to(dtype)).requires_grad_(each.requires_grad)
                    for each in (sample.input, *sample.args)
                ]
                kept = [each for each in tensors if isinstance(each, torch.Tensor)]
                leaves = [each for each in kept if each.requires_grad]
                state = [each for each in kept if not each.requires_grad]
                return outcome(torch, lambda: call(*tensors, **sample.kwargs), leaves, state, name)

            adapted = None
            if operator == "nn.functional.batch_norm" and sample.input.numel():
                adapted = functools.partial(attempt, call=bn_ext.torch.batch_norm)
            calls = check(torch, attempt, name, adapted)
            assert calls == ([0, 1] if sample.input.numel() else [])
            ran["torch OpInfo", name] += bool(calls)


@in_every_dtype
@pytest.mark.parametrize("module", MODULES)
def test_module_db(torch, ran, module, name):
    from torch.testing._internal.common_modules import module_db

    (info,) = [each for each in module_db if each.module_cls is getattr(torch.nn, module)]
    dtype = getattr(torch, name)
    for training, vectors in itertools.product((True, False), {name, VECTORS[name]}):
        for case in info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        ):
            made, given = case.constructor_input, case.forward_input
            layer = info.module_cls(*made.args, **made.kwargs).to(getattr(torch, vectors))
            layer.train(training)
            with torch.no_grad():
                for each in (*layer.parameters(), *layer.buffers()):
                    if each.is_floating_point():
                        each.copy_(torch.rand(each.shape) + 0.5)
            for arrange in arrangements(torch):

                def attempt(dtype, layer=layer, given=given, arrange=arrange, change=None):
                    mine = (change or (lambda layer: layer))(copy.deepcopy(layer))
                    if dtype == torch.float64:
                        mine.to(dtype)
                    x = arrange(given.args[0].detach().to(dtype)).requires_grad_()
                    leaves = [x, *mine.parameters()]
                    return outcome(torch, lambda: mine(x), leaves, [*mine.buffers()], name)

                adapted = functools.partial(attempt, change=bn_ext.torch.convert)
                calls = check(torch, attempt, name, adapted)
                assert calls == ([0, 1] if given.args[0].numel() else [])
                ran["torch modules", name] += bool(calls)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("dims", [(5, 3), (4, 3, 3), (2, 3, 2, 3), (2, 3, 1, 2, 3), (1, 3, 3)])
def test_gradcheck(torch, ran, dims, data_format, training):
    """Each derivative is that of differences, and so is each derivative of it."""
    import aten

    rng = np.random.default_rng([*dims, training])

    def some(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()

    channels = dims[-1 if data_format == "NXC" else 1]
    for scaled in (True, False):
        for shifted in (True, False):
            gamma, beta = (some(channels) if there else None for there in (scaled, shifted))
            stats = None, None
            if not training:
                stats = some(channels).detach(), some(channels).detach() ** 2 + 0.5
            arguments = some(*dims), gamma, beta, *stats, data_format
            for derivatives in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
                assert derivatives(aten.Normalize.apply, arguments, atol=1e-7, rtol=1e-6)
                ran[f"torch {derivatives.__name__}", "float64"] += 1

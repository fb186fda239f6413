"""torch's own samples of batch normalization, given to bn_ext.torch.

torch's float64 results count as right. test_torch.py has torch's checks of gradients.

pytest -m suites        needs torch and what its testing modules import
"""

import numpy as np
import pytest
from cases import DATA_DTYPES
from judged import judge

pytestmark = [pytest.mark.suites, pytest.mark.filterwarnings("ignore")]

in_every_dtype = pytest.mark.parametrize("name", DATA_DTYPES)


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    return torch


def arrangements(torch):
    """Ways to lay out the same values in memory."""
    from torch.testing._internal.common_utils import noncontiguous_like

    last = {4: torch.channels_last, 5: torch.channels_last_3d}

    def channels_last(tensor):
        return tensor.clone(memory_format=last.get(tensor.ndim, torch.contiguous_format))

    return [torch.Tensor.clone, noncontiguous_like, channels_last]


def outcome(torch, call, leaves, state, name):
    results = call()
    rng = np.random.default_rng(1)
    diff = torch.from_numpy(rng.standard_normal(results.shape)).to(getattr(torch, name))
    grads = torch.autograd.grad(results, leaves, diff.to(results.dtype))
    return [each.detach().to(torch.float64).numpy() for each in (results, *grads, *state)]


def check(got, right, name):
    """Errors are judged as if terms were four times as large as the results, and at least 4."""
    judge(got, right, [4 * np.maximum(abs(each), 1) for each in right], name)


@in_every_dtype
def test_opinfo(torch, ran, name):
    from torch.testing._internal.common_methods_invocations import op_db

    from bn_ext.torch import batch_norm

    (info, *_) = [op for op in op_db if op.name == "nn.functional.batch_norm"]
    for sample in info.sample_inputs("cpu", getattr(torch, name), requires_grad=True):
        if not sample.input.numel():
            continue
        for arrange in arrangements(torch):

            def attempt(call, dtype, sample=sample, arrange=arrange):
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

            right = attempt(info.op, torch.float64)
            check(attempt(batch_norm, getattr(torch, name)), right, name)
            ran["torch OpInfo", name] += 1

"""bn_ext.torch: torch's own checks, layers that take the place of torch's, and other processes."""

import copy
import functools
import inspect
import io
import re
import threading
import typing

import numpy
import pytest
from cases import in_thread
from fp_modes import MODES
from needs import needs_cpus
from processes import python
from tree import PROGRAMS

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import checkpoint as checkpoints  # noqa: E402

import bn_ext.torch  # noqa: E402
from bn_ext import _core  # noqa: E402
from bn_ext.torch import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm, batch_norm, convert  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
OP = torch.ops.bn_ext
modes = pytest.mark.parametrize("training", [True, False])
relus = pytest.mark.parametrize("relu", [False, True])
last = {4: torch.channels_last, 5: torch.channels_last_3d}
OPTIONS = [{}, {"track_running_stats": False}, {"affine": False}]
OPTIONS += [{"momentum": None}, {"eps": 1e-3, "momentum": 1.0}]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Plain(torch.Tensor):
    """Its calls go through the operators."""


def normal(*shape, **options):
    return torch.randn(shape, dtype=torch.float64, **options)


def small_net():
    """A network whose parameters and statistics are no longer the initial ones."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3)]
    layers += [nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(80, 2), nn.BatchNorm1d(2)]
    net = nn.Sequential(*layers)
    steps(net, 1)
    net.zero_grad()
    return net


def steps(net, count, x=None):
    x = torch.randn(6, 3, 8, 8) if x is None else x
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = (net(x) ** 3).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *net.state_dict().values()]


def assert_same(got, right):
    """Assert equal dtypes and values (+0 equals -0)."""
    for a, b in zip(got, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@modes
@relus
@pytest.mark.parametrize("dims", [(5, 3), (3, 2, 2), (2, 3, 2, 2), (2, 2, 1, 2, 2)])
@pytest.mark.parametrize("format_", ["contiguous", "channels_last", "strided"])
def test_derivatives(dims, format_, relu, training):
    channels = dims[1]
    src, src_1 = normal(2, *dims)
    if format_ == "channels_last":
        src = src.contiguous(memory_format=last.get(len(dims), torch.contiguous_format))
    elif format_ == "strided":
        src = normal(*dims[:-1], 2 * dims[-1])[..., ::2]
    running = (None, None) if training else (normal(channels), normal(channels) ** 2 + 0.5)
    arguments = [src, normal(channels), normal(channels), src_1]
    for kept in ((0, 1, 2, 3), (0,), (0, 2), (0, 1)):
        taken = [a.detach().requires_grad_() for i, a in enumerate(arguments) if i in kept]

        def function(*taken, kept=kept):
            x, weight, bias, others = (
                taken[kept.index(i)] if i in kept else None for i in range(len(arguments))
            )
            options = {"eps": 0.1, "src_1": others, "relu": relu}
            return batch_norm(x, *running, weight, bias, training, **options)

        assert torch.autograd.gradcheck(function, taken)
        assert torch.autograd.gradgradcheck(function, taken)


@modes
@relus
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(dtype, relu, training):
    x, src_1, diff = torch.randn(3, 4, 3, 3, 3).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias, mean, var = torch.rand(4, 3).add_(0.5)
    weight.requires_grad_(), bias.requires_grad_()
    forward = x, weight, bias, src_1, mean, var, training, 0.1, 0.1, relu, relu, None, False
    close = {"rtol": 0.0, "atol": 0.0}
    torch.library.opcheck(OP.batch_norm.default, forward, **close)
    alone = x, None, None, None, mean, var, training, 0.1, 0.1, relu, relu, None, False
    torch.library.opcheck(OP.batch_norm.default, alone, **close)
    _, statistics, bits, *_ = OP.batch_norm(*(a.detach() if a is x else a for a in forward))
    saved = x, diff, statistics.detach(), weight
    for vectors in (True, False):
        backward = *saved, bits, training, 0.1, relu, True, vectors, None, False, bias.dtype
        torch.library.opcheck(OP.batch_norm_backward.default, backward, **close)
    diffs = diff, *statistics.detach(), diff
    twice = *(a.detach() for a in saved), bits, *diffs, training, 0.1, relu
    torch.library.opcheck(OP.batch_norm_double_backward.default, twice, **close)


def through_a_file(tensor):
    file = io.BytesIO()
    numpy.save(file, tensor.detach().numpy())
    file.seek(0)
    return torch.from_numpy(numpy.load(file))


#: Hooks that keep a saved tensor's values, but not the order of its axes in memory.
MOVED = {
    "file": through_a_file,
    "contiguous": lambda tensor: tensor.contiguous(),
    "last": lambda tensor: tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor,
    "flat": lambda tensor: tensor.flatten().view(tensor.shape),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("kind", [torch.Tensor, Plain])
@pytest.mark.parametrize("layer", [BatchNorm2d, SyncBatchNorm])
@pytest.mark.parametrize("hook", MOVED.values(), ids=MOVED)
def test_saved_tensors_whose_axes_move_in_memory(hook, layer, kind, added):
    made = layer(3, relu=True)
    arguments = normal(3, 4, 3, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    src, src_1, diff = (a.contiguous(memory_format=torch.channels_last) for a in arguments)
    src, others = src.as_subclass(kind).requires_grad_(), [src_1.requires_grad_()] * added
    taken = [src, *others, *made.parameters()]

    def derivatives(hooked):
        with torch.autograd.graph.saved_tensors_hooks(hooked, lambda tensor: tensor):
            results = torch.autograd.grad(made(src, *others), taken, diff, create_graph=twice)
            if not twice:
                return results
            second = torch.autograd.grad(
                sum((a**2).sum() for a in results), taken, allow_unused=True
            )
            return [a for a in second if a is not None]

    twice = False
    assert_same(derivatives(hook), derivatives(lambda tensor: tensor))
    twice = layer is BatchNorm2d
    torch.testing.assert_close(derivatives(hook), derivatives(lambda tensor: tensor))


def test_what_has_no_derivative():
    x = normal(4, 2, requires_grad=True)
    first = torch.autograd.grad(
        (batch_norm(x, None, None, training=True) ** 3).sum(), x, create_graph=True
    )[0]
    second = torch.autograd.grad((first**2).sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="batch_norm_double_backward.* no autograd formula"):
        second.sum().backward()
    made = SyncBatchNorm(2, dtype=torch.float64)
    for layer in (copy.deepcopy(made).eval(), convert(nn.BatchNorm1d(2).double()).eval()):
        assert torch.autograd.gradgradcheck(layer, x)
    (first,) = torch.autograd.grad((made(x) ** 3).sum(), x, create_graph=True)
    with pytest.raises(
        RuntimeError, match="^batch_norm: the gradient of the gradient is not available"
    ):
        first.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
# The cache does not notice if the operators change.
@torch.compiler.config.patch(force_disable_caches=True)
def test_compile(backend):
    net = nn.Sequential(*list(convert(small_net()))[:6])
    net[1].relu = True
    copied = copy.deepcopy(net)
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(copied, fullgraph=True, backend=backend)
    for mode in (True, False):
        net.train(mode), copied.train(mode)
        for _ in range(2):
            a, b = net(x), compiled(x)
            (a**3).mean().backward(), (b**3).mean().backward()
            torch.testing.assert_close(b, a)
    for a, b in zip(net.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    for a, b in zip(net.buffers(), copied.buffers(), strict=True):
        torch.testing.assert_close(b, a)


def test_convert_and_back():
    """In place: parameters, buffers and hooks are the same objects; results are nearly the same."""
    net = small_net()
    twin, seen = copy.deepcopy(net), []
    net[1].register_forward_hook(lambda *_: seen.append(1))
    parts = [*net.parameters(), *net.buffers()]
    assert convert(net) is net
    assert {type(net[i]).__module__ for i in (1, 4, 7)} == {"bn_ext.torch"}
    assert all(isinstance(net[i], nn.modules.batchnorm._BatchNorm) for i in (1, 4, 7))
    assert isinstance(net[1], nn.BatchNorm2d)
    assert all(a is b for a, b in zip(parts, [*net.parameters(), *net.buffers()], strict=True))
    x = torch.randn(6, 3, 8, 8)
    for a, b in zip(steps(net, 3, x), steps(twin, 3, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    twin.load_state_dict(net.state_dict())
    convert(net, back=True)
    assert [type(each) for each in net] == [type(each) for each in twin]
    assert_same(net.eval()(x)[None], twin.eval()(x)[None])
    assert len(seen) == 4


class Fused(nn.Module):
    def __init__(self, make, rank):
        super().__init__()
        convolution = getattr(nn, f"Conv{rank}d")
        self.first, self.second = convolution(3, 4, 1), convolution(4, 3, 1)
        self.of_first, self.of_second = make(4, relu=True), make(3, relu=True)

    def forward(self, x):
        return self.of_second(self.second(self.of_first(self.first(x))), x)


def pickled(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def called(layer, *_):
    layer.calls = getattr(layer, "calls", 0) + 1


FUSED = [(1, BatchNorm1d), (2, BatchNorm2d), (3, BatchNorm3d), (2, SyncBatchNorm)]


@pytest.mark.parametrize(("rank", "make"), FUSED)
def test_fused_layers_back_and_forth(rank, make):
    """Without bn_ext's operators: the same names, parameters, hooks, arguments and numbers."""
    net, x = Fused(make, rank), torch.randn(5, 3, *[4] * rank)
    steps(net, 2, x)
    net.of_first.register_forward_hook(called)
    names, twin, parts = list(net.state_dict()), pickled(net), [*net.parameters()]
    assert convert(net, back=True) is net
    assert list(net.state_dict()) == names
    assert all(a is b for a, b in zip(net.parameters(), parts, strict=True))
    assert not {OP.batch_norm.default} & {n.target for n in make_fx(net)(x).graph.nodes}
    if make is not SyncBatchNorm:
        assert isinstance(net.of_first, getattr(nn, f"BatchNorm{rank}d"))
    for each in (net, copy.deepcopy(net), pickled(net)):
        each.load_state_dict(twin.state_dict())
        each.of_first.calls = 0
        for a, b in zip(steps(each, 2, x), steps(copy.deepcopy(twin), 2, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert each.of_first.calls == 2
    convert(net)
    assert type(net.of_first) is type(net.of_second) is make
    twin.load_state_dict(net.state_dict())
    assert_same(steps(net, 1, x), steps(twin, 1, x))


@pytest.mark.parametrize(("rank", "make"), FUSED)
def test_export_to_onnx(rank, make):
    pytest.importorskip("onnx")
    import onnx.reference

    net, x, file = Fused(make, rank), torch.randn(5, 3, *[4] * rank), io.BytesIO()
    steps(net, 2, x)
    right = net.eval()(x).detach()
    torch.onnx.export(convert(net, back=True), (x,), file, dynamo=False)
    model = onnx.load_from_string(file.getvalue())
    assert {node.domain for node in model.graph.node} == {""}
    (results,) = onnx.reference.ReferenceEvaluator(model).run(
        None, {model.graph.input[0].name: x.numpy()}
    )
    torch.testing.assert_close(torch.from_numpy(results), right, rtol=1e-5, atol=1e-5)


class Activated(nn.BatchNorm2d):
    def forward(self, input):
        return super().forward(input).tanh()


class OwnActivated(BatchNorm2d):
    def forward(self, input, src_1=None):
        return super().forward(input, src_1).tanh()


class SyncActivated(SyncBatchNorm):
    def forward(self, input, src_1=None):
        return super().forward(input, src_1).tanh()


def parametrized(layer):
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    return layer


#: What convert_sync_batchnorm does not turn.
LEFT = {
    "subclass of torch's": lambda: Activated(3),
    "own subclass": lambda: OwnActivated(3),
    "parametrized": lambda: parametrized(nn.BatchNorm2d(3)),
    "own, parametrized": lambda: parametrized(BatchNorm2d(3)),
    "lazy": lambda: nn.LazyBatchNorm2d(),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", LEFT)
def test_what_is_not_synchronized_is_named_in_a_warning(kind):
    """It computes what it did before; what is turned is not named."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(LEFT[kind]()))
    right, x = LEFT[kind](), torch.randn(4, 3, 5, 5)
    types, parts = [type(each) for each in net[1].modules()], [*net[1].parameters()]
    message = rf"^convert_sync_batchnorm: left '1\.0' \({types[1].__name__}\) as they are, "
    with pytest.warns(UserWarning, match=message) as told:
        assert SyncBatchNorm.convert_sync_batchnorm(net) is net
    assert [warning.filename for warning in told] == [__file__]
    assert type(net[0]) is SyncBatchNorm
    assert [type(each) for each in net[1].modules()] == types
    assert all(a is b for a, b in zip(net[1].parameters(), parts, strict=True))
    assert_same(net[1](x)[None], right(x)[None])


@pytest.mark.filterwarnings("error")
def test_nothing_else_is_named_in_a_warning():
    layers = [nn.BatchNorm1d(3), BatchNorm2d(3), nn.SyncBatchNorm(3), SyncBatchNorm(3)]
    net = nn.Sequential(*layers, SyncActivated(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3))
    SyncBatchNorm.convert_sync_batchnorm(net)
    assert [type(each) for each in net[:4]] == [SyncBatchNorm] * 4
    assert type(net[4]) is SyncActivated


@pytest.mark.parametrize("convert", [convert, SyncBatchNorm.convert_sync_batchnorm])
@pytest.mark.parametrize("value", [nn.ReLU(), nn.Parameter(torch.ones(1)), torch.relu])
def test_a_conversion_that_fails_leaves_the_model_as_it_was(convert, value):
    layers = [nn.BatchNorm2d(3), BatchNorm2d(3, relu=True), nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    net = nn.Sequential(*layers)
    net[2].relu = value
    types, attributes = [type(each) for each in net], [{**vars(each)} for each in net]
    with pytest.raises(ValueError, match="^module: expected layers without relu, .* got '2' with "):
        convert(net)
    assert [type(each) for each in net] == types
    assert [vars(each) for each in net] == attributes


def test_what_a_synchronized_layer_needs_is_checked_before_anything_changes():
    net = nn.Sequential(nn.BatchNorm2d(3), BatchNorm2d(3))
    net[1].process_group = nn.ReLU()
    with pytest.raises(ValueError, match="^module: expected layers without process_group, "):
        SyncBatchNorm.convert_sync_batchnorm(net)
    assert [type(each) for each in net] == [nn.BatchNorm2d, BatchNorm2d]


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"])
def test_a_layer_has_the_parameters_of_torchs(name):
    """In its signature, by which torch's skip_init and other tools go; and they do the same."""
    own, theirs = getattr(bn_ext.torch, name), getattr(nn, name)
    parameters = inspect.signature(own).parameters
    for parameter in inspect.signature(theirs).parameters.values():
        assert parameters[parameter.name].kind == parameter.kind
        assert parameters[parameter.name].default == parameter.default
    layer = nn.utils.skip_init(own, 3, dtype=torch.float64)
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.float64, "cpu")
    assert own(3, device="meta").weight.is_meta
    assert own(3, bias=False).bias is None


def test_sync_layers_go_back_to_layers_that_train_alone():
    """They train on a CPU, can be copied, and see no other process."""
    net = nn.Sequential(nn.BatchNorm2d(3), BatchNorm2d(3, relu=True), SyncBatchNorm(3))
    net = SyncBatchNorm.convert_sync_batchnorm(net, process_group=threading.Lock())
    net[2].process_group = net[0].process_group
    assert {type(each) for each in net} == {SyncBatchNorm}
    net, x = copy.deepcopy(convert(net, back=True)), torch.randn(5, 3, 4, 4)
    assert type(net[0]) is nn.BatchNorm2d
    assert isinstance(net[1], nn.BatchNorm2d)
    assert not any(isinstance(each, nn.SyncBatchNorm) for each in net)
    plain = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    assert_same(steps(net, 3, x)[:3], steps(plain, 3, x)[:3])
    for shape in ((5, 3), (5, 3, 2), (5, 3, 2, 2, 2, 2)):
        assert net[2](torch.randn(shape)).shape == shape
    assert [type(each) for each in convert(net)] == [BatchNorm2d, BatchNorm2d, SyncBatchNorm]
    net = nn.Sequential(nn.SyncBatchNorm(3, process_group="some"))
    assert type(convert(net)[0]) is SyncBatchNorm
    alone = convert(net, back=True)
    assert_same(steps(alone, 3, x)[:3], steps(nn.Sequential(nn.BatchNorm2d(3)), 3, x)[:3])
    assert type(nn.SyncBatchNorm.convert_sync_batchnorm(alone)[0]) is nn.SyncBatchNorm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_options_are_torchs(options, dtype):
    made, right = BatchNorm2d(3, dtype=dtype, **options), nn.BatchNorm2d(3, dtype=dtype, **options)
    right.load_state_dict(made.state_dict())
    bound = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for training in (True, True, False):
            x = torch.randn(4, 3, 5, 2, dtype=dtype).to(memory_format=memory_format)
            results = []
            for layer in (made.train(training), right.train(training)):
                leaf = x.clone().requires_grad_()
                result = layer(leaf)
                result.backward(x)
                results.append([result, leaf.grad, *layer.buffers()])
                assert result.is_contiguous(memory_format=memory_format)
            for a, b in zip(*results, strict=True):
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, **bound)
    for a, b in zip(made.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=bound["rtol"] * 8, atol=bound["atol"] * 8)


CHANGES = {"eps": 0.5, "num_features": 7, "momentum": 0.5}
CHANGES |= dict.fromkeys(["track_running_stats", "affine", "training"], False)
CHANGES |= dict.fromkeys(["no momentum", "weight", "bias", "num_batches_tracked", "running"])


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", [BatchNorm2d, SyncBatchNorm])
def test_attributes_may_change(make, options, changed):
    layers = make(3, **options), nn.BatchNorm2d(3, **options)
    names = {"no momentum": ["momentum"], "running": ["running_mean", "running_var"]}
    for training in (True, True, False, True):
        x = torch.randn(4, 3, 5, 2)
        results = []
        for layer in layers:
            leaf = x.clone().requires_grad_()
            layer.zero_grad()
            result = layer(leaf)
            result.backward(x)
            vectors = [p.grad for p in layer.parameters()]
            results.append([result, leaf.grad, *vectors, *layer.buffers()])
            layer.train(training)
            for name in names.get(changed, [changed]):
                setattr(layer, name, CHANGES[changed])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


EMPTY = [(BatchNorm1d, (0, 3)), (BatchNorm1d, (0, 3, 4)), (BatchNorm2d, (0, 3, 4, 4))]
EMPTY += [(BatchNorm2d, (2, 3, 0, 4)), (BatchNorm3d, (0, 3, 2, 2, 2))]
EMPTY += [(SyncBatchNorm, (0, 3)), (SyncBatchNorm, (0, 3, 4, 4))]


@modes
@relus
@pytest.mark.parametrize(("make", "shape"), EMPTY)
def test_empty_batches_are_taken_as_by_torch(make, shape, relu, training):
    made = make(3, relu=relu).train(training)
    right = copy.deepcopy(convert(make(3), back=True)).train(training)
    results = []
    for layer in (made, right):
        x = torch.randn(shape, requires_grad=True)
        result = layer(x)
        result.sum().backward()
        results.append([result, x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    assert_same(*results)
    assert made.num_batches_tracked == training


def negated(*shape):
    made = torch.randn(shape, dtype=torch.complex64).conj().imag
    assert made.is_neg()
    return made


@modes
@relus
@pytest.mark.parametrize("make", [BatchNorm1d, SyncBatchNorm])
def test_lazily_negated_views(make, relu, training):
    """They are read with their sign, and refused where they would be written."""
    arguments = [negated(5, 3), negated(5, 3)]
    vectors = {"weight": negated(3), "bias": negated(3)}
    if not training:
        vectors |= {
            "running_mean": negated(3),
            "running_var": negated(3).square().neg()._neg_view(),
        }
    diff, results = negated(5, 3), []
    for read in (lambda tensor: tensor, lambda tensor: tensor.resolve_neg()):
        layer = make(3, relu=relu).train(training)
        for name, tensor in vectors.items():
            new = read(tensor)
            setattr(layer, name, nn.Parameter(new) if name in ("weight", "bias") else new)
        leaves = [read(tensor.detach()).requires_grad_() for tensor in arguments]
        assert leaves[0].is_neg() == (not results)
        result = layer(*leaves)
        grads = torch.autograd.grad(result, [*leaves, *layer.parameters()], read(diff))
        results.append([result, *grads, *layer.buffers()])
    assert_same(*results)
    for name in ("running_mean", "running_var"):
        layer = make(3)
        before = [buffer.clone() for buffer in layer.buffers()]
        setattr(layer, name, getattr(layer, name)._neg_view())
        with pytest.raises(ValueError, match="^running statistics: .* got a negated view"):
            layer(arguments[0])
        setattr(layer, name, getattr(layer, name)._neg_view())
        assert_same(layer.buffers(), before)


@modes
def test_inference_tensors_are_refused_before_anything_changes(training):
    made = BatchNorm1d(3)
    with torch.inference_mode():
        x = torch.randn(4, 3)
        made(x)
    before = [buffer.clone() for buffer in made.buffers()]
    with pytest.raises(RuntimeError, match="^batch_norm: autograd cannot save inference tensors"):
        made.train(training)(x)
    assert_same(made.buffers(), before)
    with torch.no_grad():
        assert_same([made.eval()(x)], [made(x.clone())])


@pytest.mark.parametrize("converted", [convert, SyncBatchNorm.convert_sync_batchnorm])
def test_for_type_checkers_a_model_keeps_its_type(converted):
    types = typing.get_type_hints(converted)
    assert types["return"] is types["module"]
    assert types["return"].__bound__ is nn.Module


def test_print_shows_that_a_layer_was_converted():
    net = convert(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()))
    assert "(0): bn_ext.torch.BatchNorm2d(8, eps=1e-05," in str(net)
    assert "(0): BatchNorm2d(8, eps=1e-05," in str(convert(net, back=True))
    mine = type("Mine", (BatchNorm2d,), {})(3)
    assert repr(mine).startswith("Mine(3,")
    assert type(convert(mine)) is type(convert(mine, back=True)) is type(mine)
    shown = repr(convert(BatchNorm2d(3, relu=True), back=True))
    assert shown.startswith("BatchNorm2d(3,")
    assert shown.endswith("relu=True)")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compiled", [False, True])
def test_the_warning_of_a_negative_variance_names_the_callers_line(compiled):
    layer = BatchNorm1d(2).eval()
    layer.running_var[:] = -1
    call = torch.compile(layer, backend="aot_eager") if compiled else layer
    with pytest.warns(RuntimeWarning, match="^invalid value encountered in sqrt$") as told:
        call(torch.ones(3, 2, requires_grad=True)).sum().backward()
    places = {w.filename for w in told if w.category is RuntimeWarning}
    assert places == {__file__}


def test_without_a_gradient_nothing_else_changes():
    layer, (x, src_1) = BatchNorm2d(3, relu=True).eval(), torch.randn(2, 4, 3, 5, 5)
    with torch.no_grad():  # nothing is kept for a gradient
        dst = layer(x, src_1)
    assert_same([dst], [layer(x, src_1).detach()])


@pytest.mark.parametrize("make", [BatchNorm1d, SyncBatchNorm])
def test_torchs_defaults_do_not_matter(make):
    """What calls make has the place and the dtype of what they are given."""

    def derivatives(momentum):
        layer = make(3, momentum=momentum, relu=True, device="cpu", dtype=torch.float32)
        leaf = x.clone().requires_grad_()
        result = layer(leaf, x)
        (first,) = torch.autograd.grad(
            result.square().sum(), leaf, create_graph=make is BatchNorm1d
        )
        if first.requires_grad:
            first.square().sum().backward()
        return [result, first, layer.eval()(leaf), *layer.buffers()]

    x = torch.randn(5, 3)
    right = derivatives(0.1) + derivatives(None)
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.set_default_dtype(torch.float64)
        try:
            results = derivatives(0.1) + derivatives(None)
        finally:
            torch.set_default_dtype(torch.float32)
    assert_same(results, right)


@needs_cpus
def test_no_more_threads_than_torch_has():
    made, x = BatchNorm2d(64), torch.randn(32, 64, 32, 32)
    every = torch.get_num_threads()

    def used(threads):
        torch.set_num_threads(threads)
        made(x)
        return _core.last_call()["threads"]

    assert in_thread(lambda: used(1)) == 1
    assert in_thread(lambda: used(max(2, every))) > 1
    torch.set_num_threads(every)


REFUSED = {
    "channels": (lambda x, made: BatchNorm2d(2)(x), ValueError,
                 r"weight: expected shape \(3,\), one .* of input, got \(2,\); input has shape"),
    "channels, only statistics": (lambda x, made: BatchNorm2d(1, affine=False).eval()(x),
                                  ValueError, r"running_mean: expected shape \(3,\), .* \(1,\);"),
    "shape": (lambda x, made: batch_norm(x, None, None, torch.ones(1, 3), training=True),
              ValueError, r"weight: expected shape \(3,\), .* got \(1, 3\)"),
    "src_1": (lambda x, made: made(x, x[:1]), ValueError, r"src_1: expected shape \(4, 3, 2, 2\)"),
    "rank": (lambda x, made: made(x[0]), ValueError, "expected 4D input"),
    "one value": (lambda x, made: made(x[:1, :, :1, :1]), ValueError, "input: expected more than"),
    "relu": (lambda x, made: BatchNorm2d(3, relu="yes"), TypeError, "relu: expected"),
    "axes": (lambda x, made: batch_norm(x[0, 0, 0], None, None, training=True), ValueError,
             "input: .* 2 d"),
    "no statistics": (lambda x, made: batch_norm(x, None, None), ValueError,
                      "running_mean: expected a tensor, got N"),
    "no input": (lambda x, made: batch_norm(None, None, None, training=True), TypeError,
                 "input: expected a t"),
    "length": (lambda x, made: batch_norm(x, x[0, 0, 0, :1], x[0, :, 0, 0]), ValueError,
               "running_mean: .*3,"),
    "gradients": (lambda x, made: batch_norm(x, made.weight, made.bias), ValueError,
                  "running_mean: .* no gradi"),
    "one of two": (lambda x, made: batch_norm(x, made.running_mean, None, training=True),
                   ValueError, "running_v"),
    "eps": (lambda x, made: batch_norm(x, None, None, training=True, eps=-1.0), ValueError,
            "eps: expected"),
    "momentum": (lambda x, made: batch_norm(x, None, None, training=True, momentum=None),
                 TypeError, "momentum:"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, error, message):
    made = BatchNorm2d(3)
    with pytest.raises(error, match=f"^{message}"):
        call(torch.randn(4, 3, 2, 2), made)
    assert_same(made.buffers(), BatchNorm2d(3).buffers())


@modes
@pytest.mark.parametrize("name", ["input", "src_1", "weight", "bias", "running_mean"])
def test_hints_can_be_followed(name, training):
    """If a message says what to pass, that is accepted. What is written cannot be a copy."""
    x, vectors = torch.randn(4, 4), torch.ones(4, 4)
    names = "weight", "bias", "running_mean", "running_var"
    right = {"input": x, "training": training} | dict(zip(names, vectors, strict=True))
    if name == "src_1":
        right[name] = x
    is_written = training and name == "running_mean"
    others = torch.bool, torch.uint8, torch.int64, torch.float8_e5m2, torch.complex64
    strange = [right[name].to(dtype) for dtype in others]
    strange += [right[name].to_sparse(), right[name].to_mkldnn()]
    if name == "src_1":
        strange += [x.double(), x.bfloat16()]
    for tensor in strange:
        with pytest.raises(TypeError, match=f"^{name}: expected .*, got torch") as caught:
            batch_norm(**right | {name: tensor})
        advice = re.search("; pass (.*)$", str(caught.value))
        assert bool(advice) == (not is_written and not tensor.is_complex())
        if advice:
            passed = eval(advice[1], {**right, name: tensor})
            assert batch_norm(**right | {name: passed}).shape == x.shape


def test_tensors_without_memory():
    """With all tensors on the device meta, there are shapes; otherwise, an error names a tensor."""
    meta, x = torch.randn(4, 3, device="meta"), torch.randn(4, 3)
    for make in (BatchNorm1d, SyncBatchNorm):
        made, without = make(3), make(3, device="meta")
        for layer in (without, without.eval()):
            assert layer(meta, meta).device.type == "meta"
            with pytest.raises(TypeError, match="^weight: .* on cpu, like input, got meta$"):
                layer(x)
        with pytest.raises(TypeError, match="^weight: .* on meta, like input, got cpu$"):
            made(meta)
        with pytest.raises(TypeError, match="^src_1: .* on cpu, like input, got meta$"):
            made(x, meta)
        assert_same(made.buffers(), make(3).buffers())
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="^expected tensors with memory, got a .*Tensor of"):
        batch_norm(x, None, None, training=True)


def test_running_statistics_that_share_memory():
    """Both are written: an error comes before anything changes. In inference, both may be one."""
    x, numbers = torch.randn(4, 3), torch.rand(2, 6)
    there = numbers.clone()
    for arguments in (
        {"running_mean": numbers[0, :3], "running_var": numbers[0, 2:5]},
        {"running_mean": numbers[0, :3], "running_var": numbers[1, 0].expand(3)},
        {"running_mean": x[0], "running_var": torch.ones(3)},
        {"running_mean": torch.ones(3), "running_var": numbers[0, :3], "weight": numbers[0, 1:4]},
        {"running_mean": numbers[0, :3], "running_var": torch.ones(3), "bias": numbers[0, :3]},
    ):
        for src, group in ((x, None), (x, ""), (x.as_subclass(Plain), None)):
            with pytest.raises(ValueError, match=r"^running_(mean|var): .*share(s)? memory"):
                batch_norm(src, **arguments, training=True, group=group)
    assert_same([numbers], [there])
    batch_norm(x, numbers[0, :3], numbers[0, :3])
    batch_norm(x, numbers[0, ::2], numbers[0, 1::2], numbers[1, :3], numbers[1, 3:], True)
    assert (numbers[0] != there[0]).all()


@pytest.mark.parametrize("kind", [torch.Tensor, Plain])
def test_autograd_notices_that_running_statistics_change(kind):
    made, x = BatchNorm1d(3), torch.randn(4, 3).as_subclass(kind)
    scaled = (x.clone().requires_grad_() * made.running_var).sum()
    made(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scaled.backward()


def test_transforms_are_refused_without_gradients_too():
    made, x = BatchNorm1d(3, track_running_stats=False), torch.randn(2, 4, 3)
    with torch.no_grad():
        for transform in (
            lambda: torch.vmap(made)(x),
            lambda: torch.func.jvp(made, (x[0],), (x[1],)),
            lambda: torch.func.grad(lambda x: made(x).sum())(x[0]),
        ):
            with pytest.raises(RuntimeError, match="autograd.Function with functorch transforms"):
                transform()
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
            made(torch.autograd.forward_ad.make_dual(*x))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_bits_in_any_floating_point_mode(mode):
    scales = torch.tensor([1, 0.3, 1e-45, 1e-40, 1e-22, 1e22, 3e38])
    x, src_1, dy, *directions = (a.requires_grad_() for a in torch.rand(5, 6, 7) * scales)
    weight = (torch.rand(7) * scales.flip(0)).requires_grad_()
    start = torch.stack((scales, scales.roll(2)))

    def derivatives():
        results = []
        for training in (True, False):
            arguments = *start.clone(), weight, None, training
            y = batch_norm(x, *arguments, eps=0.0, src_1=src_1, relu=True)
            grads = torch.autograd.grad(y, [x, src_1], dy, create_graph=True)
            results += [*arguments[:2], y, *grads]
            results += torch.autograd.grad(grads, dy, directions, retain_graph=True)
            results += torch.autograd.grad(y, weight, dy)
        for layer in (BatchNorm1d(7, momentum=None), SyncBatchNorm(7, momentum=None)):
            results += [*(layer(x) for _ in range(3)), layer.running_mean, layer.running_var]
        return results

    right = derivatives()
    enter, options, _ = MODES[mode]
    with enter(options):
        again = derivatives()
    for a, b in zip(again, right, strict=True):
        assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


def test_what_traces_without_a_compiler_finds_the_operators():
    made, (x, y) = BatchNorm2d(3), torch.randn(2, 4, 3, 2, 2)

    def gradient(x):
        return torch.autograd.grad(made(x).square().sum(), x)[0]

    x.requires_grad_(), y.requires_grad_()
    graph = make_fx(gradient)(x)
    assert {OP.batch_norm.default, OP.batch_norm_backward.default} <= {
        node.target for node in graph.graph.nodes
    }
    torch.testing.assert_close(graph(y), gradient(y))
    twin = copy.deepcopy(made)
    traced = torch.jit.trace(twin, x)
    twin.load_state_dict(made.state_dict())
    assert_same([traced(y)], [made(y)])
    assert_same(twin.buffers(), made.buffers())


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("way", ["reentrant", "first", "not", "subclass", "nested", "selective"])
def test_checkpoints_count_as_with_torch(way, momentum, sync):
    """Each recomputed layer counts its batch twice, the last layer too."""
    x = torch.randn(8, 3, requires_grad=True)
    first, last = (nn.BatchNorm1d(4, momentum=momentum) for _ in range(2))
    plain = nn.Sequential(nn.Linear(3, 4), first, nn.ReLU(), nn.Linear(4, 4), last)
    change = SyncBatchNorm.convert_sync_batchnorm if sync else convert
    run = functools.partial(checkpoints.checkpoint, use_reentrant=way == "reentrant")
    if way == "selective":
        policy = functools.partial(lambda *_, **__: checkpoints.CheckpointPolicy.PREFER_RECOMPUTE)
        create = checkpoints.create_selective_checkpoint_contexts
        run = functools.partial(run, context_fn=functools.partial(create, policy))
    results = []
    for net in (plain, change(copy.deepcopy(plain))):
        if way == "first":
            result = net[2:](run(net[:2], x))
        elif way == "nested":
            result = run(lambda x, net=net: run(net, x), x)
        else:
            result = run(net, x.as_subclass(Plain) if way == "subclass" else x)
        net.zero_grad()
        result.pow(3).mean().backward()
        results.append([*net.buffers(), *(each.grad for each in net.parameters())])
    assert net[1].num_batches_tracked == 2
    assert net[4].num_batches_tracked == (1 if way == "first" else 2)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grad", [True, False])
def test_an_interrupted_pass_is_counted_if_it_updates(monkeypatch, grad):
    """Python raises a KeyboardInterrupt when the compiled call returns. A refused pass is not."""
    made, x = BatchNorm1d(3, momentum=None), torch.randn(6, 3, requires_grad=grad)
    training = _core.training
    for error in (KeyboardInterrupt, MemoryError):

        def fail(*arrays, error=error, **options):
            if error is KeyboardInterrupt:
                training(*arrays, **options)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(_core, "training", fail)
            with pytest.raises(error):
                made(x)
        assert made.num_batches_tracked == 1
        torch.testing.assert_close(made.running_mean, x.detach().mean(0))


def on_gloo(tmp_path, size, case):
    done = python(PROGRAMS / "on_gloo.py", size, tmp_path, case)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return sorted(done.stdout.splitlines())


def test_sync_without_processes():
    """Bits do not depend on the memory format; results are nearly those of torch's batch norm."""
    made, right = SyncBatchNorm(3), nn.BatchNorm2d(3)
    x = torch.randn(5, 3, 4, 4)
    first = made(x)
    assert_same([made(x.contiguous(memory_format=torch.channels_last))], [first])
    many = torch.randn(9, 3, 8, 8) * 10 ** torch.linspace(-4, 4, 8)  # plain sums would differ
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        leaf = many.contiguous(memory_format=layout).requires_grad_()
        dst = SyncBatchNorm(3)(leaf)
        results.append(torch.autograd.grad(dst, leaf, many.contiguous(memory_format=layout)))
    assert_same(*results)
    for _ in range(2):
        torch.testing.assert_close(first, right(x))
    for a, b in zip(made.buffers(), right.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(made.eval()(x), right.eval()(x))
    net = SyncBatchNorm.convert_sync_batchnorm(small_net(), process_group="some")
    assert [type(net[i]) for i in (1, 4, 7)] == [SyncBatchNorm] * 3
    assert net[1].process_group == "some"


@pytest.mark.slow
def test_sync_has_the_same_bits_for_any_number_of_processes(tmp_path):
    results = [on_gloo(tmp_path, size, "digests") for size in (1, 2, 3, 5)]
    assert len(results[0]) == 6
    assert all(len(line.split()) == 3 for line in results[0])  # one digest for all deals
    assert results == [results[0]] * 4


@pytest.mark.parametrize("size", [1, 2])
def test_sync_computes_what_torch_does_of_the_whole_batch(tmp_path, size):
    """Gradients of parameters are shares that can be averaged."""
    assert on_gloo(tmp_path, size, "shares") == ["shares"] * size


def test_sync_on_another_default_device_and_in_other_groups(tmp_path):
    """Whether a call is counted, and the errors of groups that this process is not in."""
    message = "process_group: expected None or a ProcessGroup that this process is in, got "
    errors = [f"{message}{got}" for got in ("'some'", "-100", "0")]
    assert on_gloo(tmp_path, 2, "elsewhere") == sorted([*["0"] * 3, *["1"] * 2, *errors] * 2)


def test_fully_sharded_training(tmp_path):
    """fully_shard frees and reallocates parameters' memory."""
    assert on_gloo(tmp_path, 1, "sharded") == ["sharded"]


def test_processes_in_different_calls_all_get_an_error(tmp_path):
    """Also if their sums have different sizes. After it, calls work again."""
    results = dict(line.split(": ", 1) for line in on_gloo(tmp_path, 3, "differ"))
    own = {
        "channels": "batch_norm of 500 channels, torch.float32, eps=1e-05",
        "eps": "batch_norm of 3 channels, torch.float32, eps=0.001",
        "dtype": "batch_norm of 3 channels, torch.float64, eps=1e-05",
        "backward": "batch_norm_backward of 3 channels, torch.float32, eps=1e-05",
    }
    usual = "batch_norm of 3 channels, torch.float32, eps=1e-05"
    assert results == {
        f"{rank} {broken}": "batch_norm: expected the same function, channels, dtype and eps in "
        f"all processes of the group, got {own[broken] if rank == 1 else usual} in process {rank} "
        "and others in another"
        for broken in own
        for rank in range(3)
    }

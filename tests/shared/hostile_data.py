"""Problems made to break error bounds, and a search that makes them worse.

Every channel is a problem of its own, so one call tries a whole population. Its tensors are (C, M)
and are laid out for one of the forms of src_c/call/order.c. In every form, element 0 of a channel
is in the first block that is summed.
"""

import functools
from collections import namedtuple

import bounds
import ml_dtypes
import numpy as np
from cases import FORMATS, INPUTS, dtype

import bn_ext
from bn_ext.testing import _formulas as reference, _limits as limits
from bn_ext.testing._limits import arithmetic, unit
from bn_ext.testing._wide import wide_of

#: form: (data_format, leading axes, trailing axes, channels); the axes depend on the itemsize.
#: Each column has at least a group of eight blocks of four rows, if its form allows that.
FORMS = {
    "one position": ("NXC", lambda size: (1,), lambda size: (), 200),
    "few positions": ("NXC", lambda size: (5,), lambda size: (), 200),
    "channels last": ("NXC", lambda size: (137,), lambda size: (), 160),
    "several positions a row": ("NXC", lambda size: (12 * 35,), lambda size: (), 24),
    "short runs": ("NCX", lambda size: (35,), lambda size: (3,), 64),
    "long runs": ("NCX", lambda size: (1,), lambda size: (4096 // size + 300,), 3),
    "runs side by side": ("NCX", lambda size: (4,), lambda size: (1024 // size + 140,), 6),
}


#: What members of the family read: tensors, then vectors.
TENSORS = ["src", "diff_dst", "diff_diff_src"]
VECTORS = ["mean", "variance", "gamma", "beta", "diff_diff_gamma", "diff_diff_beta"]
ARRAYS = [*TENSORS, *VECTORS]
AFFINE = ["gamma", "beta"]
SECOND = [*INPUTS, TENSORS[2], *VECTORS[4:]]


class Population(namedtuple("Population", [*ARRAYS, "epsilon"])):
    """Channels first: tensors are (C, M)."""

    def arrays(self, names=ARRAYS):
        return tuple(getattr(self, name) for name in names)

    def take(self, channels):
        return self._replace(**{name: getattr(self, name)[channels] for name in ARRAYS})

    def laid_out(self, form, names):
        """The arguments of a call, with tensors laid out in the form."""
        arrays = zip(names, self.arrays(names), strict=True)
        return [laid_out(a, form) if name in TENSORS else a for name, a in arrays]


def size_of(form, data):
    _, before, behind, channels = FORMS[form]
    size = dtype(data).itemsize
    return channels, int(np.prod(before(size) + behind(size)))


def laid_out(array, form):
    """A (C, M) array as a tensor of the form."""
    data_format, before, behind, _ = FORMS[form]
    size = array.dtype.itemsize
    whole = array.reshape(len(array), *before(size), *behind(size))
    return np.ascontiguousarray(np.moveaxis(whole, 0, FORMATS[data_format]))


def by_channel(array, form):
    return reference.by_channel(array, FORMATS[FORMS[form][0]])


#: Kinds of a channel's elements.
KINDS = ["normal", "magnitudes", "ordered", "one large", "alternating", "cancelling", "alike"]
KINDS += ["swallowed", "mask"]


def elements(rng, kind, m, span):
    """Numbers of a kind, over `span` octaves up to about 1."""
    values = np.exp2(rng.uniform(-span, 0, m)) * rng.choice([-1, 1], m)
    match kind:
        case "normal":
            values = rng.standard_normal(m)
        case "ordered":
            values = values[np.argsort(abs(values))][:: rng.choice([-1, 1])]
        case "one large":  # the first, or any
            values = rng.uniform(0.5, 1, m) * np.exp2(-rng.uniform(0, span))
            values[rng.choice([0, rng.integers(m)])] = 1
        case "alternating":
            values = rng.uniform(1, 1 + np.exp2(-rng.uniform(0, span)), m)
            values[1::2] *= -1
        case "cancelling":  # of an odd number of values, one is left
            values[m // 2 : m // 2 * 2] = -values[: m // 2]
            values = rng.permutation(values) if rng.random() < 0.5 else values
        case "alike":  # often just above a power of two, where relative errors are largest
            values = np.full(m, 1 + np.exp2(-rng.integers(0, span + 1)) * rng.integers(0, 2))
        case "swallowed":  # values that each make a float sum lose or gain almost half an ulp of 1
            values[:] = 2.0**-24 * (1 + rng.choice([-1, 1]) * np.exp2(-rng.integers(2, 11)))
            values[0] = 1
        case "mask":
            values = (rng.random(m) < rng.random()).astype(float)
    return values


def sampled(form, data):
    """The elements from which the forward pass makes its pivot (docs/forward.md)."""
    _, before, behind, _ = FORMS[form]
    size = dtype(data).itemsize
    return sampled_of(int(np.prod(before(size))), int(np.prod(behind(size))))


def sampled_of(positions, run):
    """The same for channels of so many positions, and runs of so many elements."""
    places = min(positions, 8 if run == 1 else 4)
    roots = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19][:places])
    parts = (np.arange(places) + (np.round(roots % 1, 5) if run == 1 else 0.5)) / places
    first = (positions * parts).astype(int) * run + (run * parts).astype(int)
    return first if run == 1 else np.concatenate([first, first[first % run < run - 1] + 1])


def channel(rng, m, data, sampled):
    """One channel's arrays, as doubles; `sampled` are the elements that make the pivot."""
    long_span = 20 if data == "float16" else 60
    x, dy, g = (elements(rng, rng.choice(KINDS), m, rng.choice([8, long_span])) for _ in TENSORS)
    if rng.random() < 0.2:  # the pivot is about 2 deviations off; if farther, sums are repeated
        x[sampled] = x.mean() + rng.choice([-1, 1]) * rng.uniform(1.8, 2.3) * x.std()
    statistics = rng.choice(["batch", "given", "far", "grazing"])
    mean, variance = rng.standard_normal(), np.exp2(rng.uniform(-14, 4))
    if statistics == "far":  # |mean| many times the deviation
        x = x * np.exp2(-rng.integers(1, 12)) + 1
    if statistics in ("batch", "far"):
        x = x.astype(dtype(data)).astype(float)
        mean, variance = x.mean(), x.var()
    if statistics == "grazing":  # src - mean lies next to a float, or halfway between two
        largest = x.flat[abs(x).argmax()]
        units = rng.integers(0, 256) + rng.choice([0.01, 0.5, 0.99])
        mean = -largest * unit(arithmetic(data)) * units
        if rng.random() < 0.5:  # and the other elements are 0: their xc is tiny
            x = np.where(x == largest, x, 0)
            dy = np.where(np.arange(m) == 0, dy[0] or 1, rng.uniform(0.9, 1.1) / max(units, 1))
    if rng.random() < 0.25:  # dy close to xhat: in training, little is left of diff_src
        xhat = (x - mean) / np.sqrt(variance + 1e-5) if variance > 0 else x
        dy = xhat + rng.choice([0, 1, 1e-3]) * rng.random()

    if rng.random() < 0.25:  # a variance that leaves nothing of diff_src at one element
        i, xc = rng.choice([0, rng.integers(m)]), x - mean
        rest = dy[i] - dy.mean()
        wanted = xc[i] * (dy * xc).mean() / rest if rest else 0
        variance = wanted if wanted > 0 else variance

    gamma = rng.choice([-1, 1]) * rng.uniform(0.5, 2)
    beta, *incoming = rng.choice([0, 1, -1, 1e-3], 3) * rng.uniform(0.5, 2, 3)
    if rng.random() < 0.25 and variance > 0:  # nothing is left of dst at one element
        beta = -gamma * (x[rng.integers(m)] - mean) / np.sqrt(variance)
    room = 5 if data == "float16" else 900 if data == "float64" else 110
    # As they are, tiny, large, of any size, or far apart.
    scales = [(0, 0), (0, 0), (-1.1, -0.8), (0.5, 1), (-0.5, 0.5), (-1.1, 1)]
    sx, sdy, sg, sgamma = np.exp2(np.round(room * rng.uniform(*rng.choice(scales), 4)))
    vectors = mean * sx, variance * sx * sx, gamma * sgamma, beta * sgamma, *incoming
    return x * sx, dy * sdy, g * sg, *vectors


def population(rng, form, data, vector):
    c, m = size_of(form, data)
    with np.errstate(all="ignore"):
        columns = [channel(rng, m, data, sampled(form, data)) for _ in range(c - 1)]
        # One channel's diff_dst is always swallowed, which ruins a plain sum of floats.
        columns.append((np.ones(m), elements(rng, "swallowed", m, 0), np.ones(m), 0, 1, 1, 0, 0, 0))
        arrays = [
            np.array(part).astype(dtype(data if name in TENSORS else vector))
            for name, part in zip(ARRAYS, zip(*columns, strict=True), strict=True)
        ]
    return Population(*arrays, float(rng.choice([0, 1e-5, 0.037])))


def limit(name):
    return np.float64(ml_dtypes.finfo(dtype(name)).max) / 2


def fits(p, want, data, vector):
    """(C,): True where the gradient's bounds are promised, as nothing comes near overflow."""
    m, scale = p.src.shape[1], abs(p.gamma.astype(np.float64)) * limits.rstd_of(p)
    dy, product = (abs(a).sum(axis=1) for a in (want.beta_terms, want.gamma_terms))
    x = abs(p.src.astype(np.float64)).max(axis=1) + abs(p.mean.astype(np.float64))
    bracket = dy + x * limits.rstd_of(p) * product
    good = limits.gradient_holds(p, want, data)
    for values, name in (
        (scale * abs(want.beta_terms).max(axis=1) + scale * bracket / m, data),
        (want.diff_gamma, vector),
        (want.diff_beta, vector),
    ):
        good &= abs(values) < limit(name)
    return good


def fits_forward(p, want, form, data):
    """(C,): The same for a forward pass."""
    sizes = by_channel(want.product_terms + want.shift_terms, form).max(axis=1)
    return limits.forward_holds(p, want, FORMATS[FORMS[form][0]], data) & (sizes < limit(data))


def fits_second(p, want, form, data, vector):
    """(C,): The same for the double backward."""
    good = limits.second_holds(p, want, data)
    terms = [by_channel(a, form).max(axis=1) for a in want[3:5]]
    for values, name in ((terms[0], data), (terms[1], data), (want.diff_gamma_terms, vector)):
        good &= values < limit(name)
    return good


def computed(p, form, names, function, wanted, **options):
    """What the reference and the function return for these arrays of a population."""
    arguments, data_format = p.laid_out(form, names), FORMS[form][0]
    options = {"epsilon": p.epsilon, **options}
    options["wide"] = wide_of(arguments[0].dtype.name)
    want = wanted(*arguments, axis=FORMATS[data_format], **options)
    del options["wide"]
    return want, function(*arguments, data_format=data_format, **options)


def gradient(p, form, data, vector, *, function=bn_ext.batch_norm_backward, parts=1, **mode):
    """Return ({output: Error}, a mask of the channels that have bounds), as all in MEMBERS do."""
    want, grads = computed(p, form, INPUTS, function, reference.batch_norm_backward, **mode)
    errors = bounds.errors(grads, want, data, vector, parts=parts, **mode)
    return errors, fits(p, want, data, vector)


def gradient_sums(p, form, data, vector):
    """Errors of sums as doubles, so rounding hides none. As rstd is 1, diff_gamma is sum(dy * xc),
    and as gamma is a double, so are both gradients.
    """
    ones = np.ones(len(p.src))
    p = p._replace(variance=ones, gamma=ones, epsilon=0.0)

    def gradient_of(*arrays, data_format, epsilon):
        options = {"data_format": data_format}
        sums = bn_ext.GradientSums(*arrays[:3], **options)
        return bn_ext.batch_norm_backward(*arrays, epsilon=epsilon, sums=sums, **options)

    want, grads = computed(p, form, INPUTS, gradient_of, reference.batch_norm_backward)
    wrong = bounds.sum_errors(grads.diff_gamma, grads.diff_beta, want, data)
    return wrong, fits(p, want, data, "float64")


def training(p, form, data, vector):
    functions = bn_ext.batch_norm_training, reference.batch_norm_training
    want, results = computed(p, form, ["src", *AFFINE], *functions)
    errors = bounds.forward_errors(results, want, data, FORMATS[FORMS[form][0]])
    return errors, fits_forward(p, want, form, data)


def statistics(p, form, data, vector):
    """Bounds are promised unless squares almost overflow."""

    def statistics_of(src, *, data_format, epsilon):
        return bn_ext.Statistics(src, data_format=data_format)

    want, results = computed(p, form, ["src"], statistics_of, reference.batch_norm_training)
    errors = bounds.statistics_errors(results.mean, results.variance, want, data)
    return errors, want.variance < limits.tops("float64") / p.src.shape[1]


def inference(p, form, data, vector):
    functions = bn_ext.batch_norm_inference, reference.batch_norm_inference
    want, dst = computed(p, form, ["src", "mean", "variance", *AFFINE], *functions)
    errors = {"dst": bounds.dst_error(dst, want, data, FORMATS[FORMS[form][0]], from_batch=False)}
    return errors, fits_forward(p, want, form, data)


def double_backward(p, form, data, vector, **mode):
    functions = bn_ext.batch_norm_double_backward, reference.batch_norm_double_backward
    want, results = computed(p, form, SECOND, *functions, **mode)
    errors = bounds.second_errors(results, want, data, vector)
    return errors, fits_second(p, want, form, data, vector)


#: member: the function that measures its errors.
MEMBERS = {
    "backward": gradient,
    "backward, frozen": functools.partial(gradient, is_training=False),
    "GradientSums": gradient_sums,
    "training": training,
    "Statistics": statistics,
    "inference": inference,
    "double_backward": double_backward,
    "double_backward, frozen": functools.partial(double_backward, is_training=False),
}


def measured(p, form, data, vector, member="backward", **options):
    """({output: (C,)}, outputs whose bounds do not hold): each channel's largest Error.share(), or
    -1 where no bound is promised.
    """
    with np.errstate(all="ignore"):
        errors, good = MEMBERS[member](p, form, data, vector, **options)
        shares, broken = {}, []
        for name, error in errors.items():
            share, over = error.share(), ~(error.off <= error.half_ulp + error.bound)
            if share.ndim > 1:
                share = by_channel(share, form).max(axis=1)
                over = by_channel(over, form).any(axis=1)
            shares[name] = np.where(good, share, -1)
            if over[good].any():
                broken.append(name)
    return shares, broken


def nudged(rng, values):
    size = values.dtype.itemsize
    bits = values.view(f"i{size}")
    return (bits + rng.integers(-4, 5, values.shape).astype(bits.dtype)).view(values.dtype)


def mutated(rng, p):
    arrays = {name: getattr(p, name).copy() for name in ARRAYS}
    c, m = p.src.shape
    rows = np.arange(c)
    with np.errstate(all="ignore"):
        for a in (arrays[name] for name in TENSORS):
            for _ in range(rng.integers(1, 4)):
                at = np.where(rng.random(c) < 0.3, 0, rng.integers(0, m, c))
                hit = rng.random(c) < 0.5
                a[rows[hit], at[hit]] = nudged(rng, a[rows[hit], at[hit]])
                hit = rng.random(c) < 0.1
                a[rows[hit], at[hit]] *= rng.choice([-1, 0, 0.5, 2], hit.sum()).astype(a.dtype)
                hit = rng.random(c) < 0.1
                a[rows[hit], at[hit]] = a[rows[hit], at[hit] - 1]
            for channel in np.flatnonzero(rng.random(c) < 0.1):  # equal elements stay equal
                equal = a[channel] == a[channel, rng.integers(m)]
                a[channel, equal] = nudged(rng, a[channel, equal][:1])
            hit = rng.random(c) < 0.03
            a[hit] *= a.dtype.type(2.0) ** rng.choice([-1, 1])
        for v in (arrays[name] for name in VECTORS):
            hit = rng.random(c) < 0.3
            v[hit] = nudged(rng, v[hit])
            hit = rng.random(c) < 0.1
            v[hit] *= np.exp2(rng.normal(0, 0.3, hit.sum())).astype(v.dtype)
        arrays["variance"] = abs(arrays["variance"])
        for a in arrays.values():
            finite = np.isfinite(a.astype(np.float64))
            a[~finite] = 1
    return p._replace(**arrays)


def search(rng, form, data, vector, member, output, generations):
    best = population(rng, form, data, vector)
    shares, broken = measured(best, form, data, vector, member)
    yield shares, broken
    fitness = shares[output]
    for _ in range(generations):
        order = np.argsort(-fitness)
        keep = order[: max(1, len(order) // 6)]
        parents = keep[rng.integers(0, len(keep), len(order))]
        parents[: len(keep)] = keep
        best, fitness = best.take(parents), fitness[parents]
        children = mutated(rng, best)
        shares, broken = measured(children, form, data, vector, member)
        yield shares, broken
        better = shares[output] > fitness
        fitness = np.where(better, shares[output], fitness)
        pairs = zip(children.arrays(), best.arrays(), strict=True)
        arrays = (np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs)
        best = Population(*arrays, best.epsilon)

"""Problems made to break error bounds, and a search that makes them worse.

Every channel is a problem of its own, so one call tries as many as there are channels. A
population is kept by channel, (C, M), and laid out for one of the forms of src_c/plan.c;
element 0 of a channel is in the first block that is summed, in every form.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import reference
from bounds import errors, sum_errors
from cases import FORMATS, INPUTS, arithmetic, dtype, unit

import bn_ext

#: form: (data_format, leading axes, trailing axes, channels), the last two by size of an element:
#: for each column a group of eight blocks of four rows and more, as far as a form has them.
FORMS = {
    "one position": ("NXC", lambda size: (1,), lambda size: (), 200),
    "few positions": ("NXC", lambda size: (5,), lambda size: (), 200),
    "channels last": ("NXC", lambda size: (137,), lambda size: (), 160),
    "several positions a row": (
        "NXC",
        lambda size: (12 * 35,),
        lambda size: (),
        24,
    ),
    "short runs": ("NCX", lambda size: (35,), lambda size: (3,), 64),
    "long runs": ("NCX", lambda size: (1,), lambda size: (4096 // size + 300,), 3),
    "runs side by side": ("NCX", lambda size: (4,), lambda size: (1024 // size + 140,), 6),
}


class Population(NamedTuple):
    """Channels first: src and diff_dst are (C, M)."""

    src: np.ndarray
    diff_dst: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    gamma: np.ndarray
    epsilon: float

    def arrays(self):
        """All of them, as the general function takes them."""
        return tuple(getattr(self, name) for name in INPUTS)

    def take(self, channels):
        """Some channels, one after the other."""
        return self._replace(**{name: getattr(self, name)[channels] for name in INPUTS})


def size_of(form, data):
    """(C, M) of a population."""
    _, before, behind, channels = FORMS[form]
    size = dtype(data).itemsize
    return channels, int(np.prod(before(size) + behind(size)))


def laid_out(array, form):
    """(C, M) as the form's tensor."""
    data_format, before, behind, _ = FORMS[form]
    size = array.dtype.itemsize
    whole = array.reshape(len(array), *before(size), *behind(size))
    return np.ascontiguousarray(np.moveaxis(whole, 0, FORMATS[data_format]))


def by_channel(array, form):
    """The way back."""
    return reference.by_channel(array, FORMATS[FORMS[form][0]])


# ---- one channel ------------------------------------------------------------------


def magnitudes(rng, m, span):
    """Powers of two over `span` octaves, with any digits behind, of either sign."""
    values = np.exp2(rng.uniform(-span, 0, m)) * rng.choice([-1, 1], m)
    return values


def ordered(rng, m, span):
    values = magnitudes(rng, m, span)
    values = values[np.argsort(abs(values))]
    return values[:: rng.choice([-1, 1])]


def one_large(rng, m, span):
    """A large value first or anywhere, the others small."""
    values = rng.uniform(0.5, 1, m) * np.exp2(-rng.uniform(0, span))
    values[rng.choice([0, rng.integers(m)])] = 1
    return values


def alternating(rng, m, span):
    values = rng.uniform(1, 1 + np.exp2(-rng.uniform(0, span)), m)
    values[1::2] *= -1
    return values


def cancelling(rng, m, span):
    """Its second half takes the first one back, but for a trace."""
    values = magnitudes(rng, m, span)
    values[m // 2 : m // 2 * 2] = -values[: m // 2]
    return rng.permutation(values) if rng.random() < 0.5 else values


def alike(rng, m, span):
    """One value, often just above a power of two, where a rounding weighs most."""
    return np.full(m, 1 + np.exp2(-rng.integers(0, span + 1)) * rng.integers(0, 2))


def swallowed(rng, m, span):
    """One value followed by such that each addition takes or adds almost half an ulp."""
    values = np.full(m, 2.0**-24 * (1 + rng.choice([-1, 1]) * np.exp2(-rng.integers(2, 11))))
    values[0] = 1
    return values


def mask(rng, m, span):
    return (rng.random(m) < rng.random()).astype(float)


def normal(rng, m, span):
    return rng.standard_normal(m)


KINDS = [normal, magnitudes, ordered, one_large, alternating, cancelling, alike, swallowed, mask]


def channel(rng, m, data):
    """src, diff_dst, mean, variance, gamma of one channel, as doubles."""
    long_span = 20 if data == "float16" else 60
    x, dy = (rng.choice(KINDS)(rng, m, rng.choice([8, long_span])) for _ in range(2))
    statistics = rng.choice(["batch", "given", "far", "grazing"])
    mean, variance = rng.standard_normal(), np.exp2(rng.uniform(-14, 4))
    if statistics == "far":  # |mean| many times the deviation
        x = x * np.exp2(-rng.integers(1, 12)) + 1
    if statistics in ("batch", "far"):
        x = x.astype(dtype(data)).astype(float)
        mean, variance = x.mean(), x.var()
    if statistics == "grazing":  # src - mean lies next to a number or halfway between two
        largest = x.flat[abs(x).argmax()]
        units = rng.integers(0, 256) + rng.choice([0.01, 0.5, 0.99])
        mean = -largest * unit(arithmetic(data)) * units
        if rng.random() < 0.5:  # and the others are zero: their xc is tiny
            x = np.where(x == largest, x, 0)
            dy = np.where(np.arange(m) == 0, dy[0] or 1, rng.uniform(0.9, 1.1) / max(units, 1))
    if rng.random() < 0.25:  # what normalization itself leaves
        xhat = (x - mean) / np.sqrt(variance + 1e-5) if variance > 0 else x
        dy = xhat + rng.choice([0, 1, 1e-3]) * rng.random()

    if rng.random() < 0.25:  # a variance that leaves nothing of diff_src at one element
        i, xc = rng.choice([0, rng.integers(m)]), x - mean
        rest = dy[i] - dy.mean()
        wanted = xc[i] * (dy * xc).mean() / rest if rest else 0
        variance = wanted if wanted > 0 else variance

    gamma = rng.choice([-1, 1]) * rng.uniform(0.5, 2)
    room = 5 if data == "float16" else 900 if data == "float64" else 110
    scale = rng.choice(["none", "none", "tiny", "large", "any"])
    if scale == "none":
        return x, dy, mean, variance, gamma
    low, high = {"tiny": (-1.1, -0.8), "large": (0.5, 1), "any": (-0.5, 0.5)}[scale]
    sx, sdy, sgamma = np.exp2(np.round(room * rng.uniform(low, high, 3)))
    return x * sx, dy * sdy, mean * sx, variance * sx * sx, gamma * sgamma


def population(rng, form, data, vector):
    """Channels of every kind."""
    c, m = size_of(form, data)
    with np.errstate(all="ignore"):
        found = [channel(rng, m, data) for _ in range(c - 1)]
        # What undoes a sum of floats, for sure, however few the channels are.
        found.append((np.ones(m), swallowed(rng, m, 0), 0, 1, 1))
        arrays = [
            np.array(part).astype(dtype(name))
            for part, name in zip(
                zip(*found, strict=True), (data, data, vector, vector, vector), strict=True
            )
        ]
    return Population(*arrays, float(rng.choice([0, 1e-5, 0.037])))


# ---- what it comes to ---------------------------------------------------------------


def fits(p, want, data, vector):
    """(C,): where the bounds are promised: nothing on the way comes near overflow.

    And for float64 data, rstd**2 has room for all digits of a pair of doubles.
    """
    wide = np.longdouble
    spread = p.variance.astype(wide) + wide(p.epsilon)
    top = 2.0**996 if data == "float64" else 2.0**127
    m = p.src.shape[1]
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(spread)
        scale = abs(p.gamma.astype(wide)) * rstd
        x = abs(p.src.astype(wide)).max(axis=1) + abs(p.mean.astype(wide))
        dy = abs(want.beta_terms).sum(axis=1)
        product = abs(want.gamma_terms).sum(axis=1)
        bracket = dy + x * rstd * product
        largest = np.stack([
            x, dy, rstd, scale, product, product / rstd, product * rstd, bracket, scale * bracket,
        ])  # fmt: skip
        good = (largest < top).all(axis=0)
        if data == "float64":
            good &= (spread > 1 / wide(top)) & (spread < top)
        for values, name in (
            (scale * abs(want.beta_terms).max(axis=1) + scale * bracket / m, data),
            (want.diff_gamma, vector),
            (want.diff_beta, vector),
        ):
            limit = np.float64(ml_dtypes.finfo(dtype(name)).max) / 2
            good &= abs(values) < limit
    return good


def problems(p, form):
    """The arguments of a call, and its data_format."""
    tensors = laid_out(p.src, form), laid_out(p.diff_dst, form)
    return (*tensors, *p.arrays()[len(tensors) :]), FORMS[form][0]


def measured(p, form, data, vector, what="training", function=bn_ext.batch_norm_backward, parts=1):
    """{output: (C,)}: the largest share of a bound that an error beyond half an ulp takes.

    -1 where no bound is promised. And the outputs whose bounds do not hold. `what` is
    "training", "frozen", or "sums": those that reduce gives, which no rounding hides.
    """
    if what == "sums":  # diff_gamma is sum(dy * xc) then
        p = p._replace(variance=np.ones_like(p.variance), epsilon=0.0)
    arguments, data_format = problems(p, form)
    options = {"epsilon": p.epsilon, "is_training": what != "frozen"}
    with np.errstate(all="ignore"):
        want = reference.batch_norm_backward(
            *arguments, axis=FORMATS[data_format], wide=np.longdouble, **options
        )
        if what == "sums":
            sums = bn_ext.batch_norm_backward_reduce(*arguments[:3], data_format=data_format)
            found = sum_errors(sums[1], sums[0], want, data)
        else:
            grads = function(*arguments, data_format=data_format, **options)
            found = errors(grads, want, data, vector, is_training=what == "training", parts=parts)
        good = fits(p, want, data, vector)
        shares, broken = {}, []
        for name, error in found.items():
            share, over = error.share(), ~(error.found <= error.half_ulp + error.bound)
            if name == "diff_src":
                share = by_channel(share, form).max(axis=1)
                over = by_channel(over, form).any(axis=1)
            shares[name] = np.where(good, share, -1)
            if over[good].any():
                broken.append(name)
    return shares, broken


# ---- the search ----------------------------------------------------------------------


def nudged(rng, values):
    """Numbers a few units of the last place away."""
    size = values.dtype.itemsize
    bits = values.view(f"i{size}")
    return (bits + rng.integers(-4, 5, values.shape).astype(bits.dtype)).view(values.dtype)


def mutated(rng, p):
    """A change to every channel: an element, a vector's value, or a whole channel."""
    src, diff_dst, mean, variance, gamma = (a.copy() for a in p.arrays())
    c, m = src.shape
    rows = np.arange(c)
    with np.errstate(all="ignore"):
        for a in (src, diff_dst):
            for _ in range(rng.integers(1, 4)):
                at = np.where(rng.random(c) < 0.3, 0, rng.integers(0, m, c))
                some = rng.random(c) < 0.5
                a[rows[some], at[some]] = nudged(rng, a[rows[some], at[some]])
                some = rng.random(c) < 0.1
                a[rows[some], at[some]] *= rng.choice([-1, 0, 0.5, 2], some.sum()).astype(a.dtype)
                some = rng.random(c) < 0.1
                a[rows[some], at[some]] = a[rows[some], at[some] - 1]
            for channel in np.flatnonzero(rng.random(c) < 0.1):  # elements that are alike, alike
                of = a[channel] == a[channel, rng.integers(m)]
                a[channel, of] = nudged(rng, a[channel, of][:1])
            some = rng.random(c) < 0.03
            a[some] *= a.dtype.type(2.0) ** rng.choice([-1, 1])
        for v in (mean, variance, gamma):
            some = rng.random(c) < 0.3
            v[some] = nudged(rng, v[some])
            some = rng.random(c) < 0.1
            v[some] *= np.exp2(rng.normal(0, 0.3, some.sum())).astype(v.dtype)
        variance = abs(variance)
        for a in (src, diff_dst, mean, variance, gamma):
            finite = np.isfinite(a.astype(np.float64))
            a[~finite] = 1
    return p._replace(src=src, diff_dst=diff_dst, mean=mean, variance=variance, gamma=gamma)


def search(rng, form, data, vector, what, output, generations):
    """Random populations, the worst channels changed again and again to do worse for `output`.

    Yields what `measured` says of each generation.
    """
    best = population(rng, form, data, vector)
    shares, broken = measured(best, form, data, vector, what)
    yield shares, broken
    fitness = shares[output]
    for _ in range(generations):
        order = np.argsort(-fitness)
        keep = order[: max(1, len(order) // 6)]
        parents = keep[rng.integers(0, len(keep), len(order))]
        parents[: len(keep)] = keep
        best, fitness = best.take(parents), fitness[parents]
        children = mutated(rng, best)
        shares, broken = measured(children, form, data, vector, what)
        yield shares, broken
        better = shares[output] > fitness
        fitness = np.where(better, shares[output], fitness)
        best = Population(
            *(
                np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(children.arrays(), best.arrays(), strict=True)
            ),
            best.epsilon,
        )

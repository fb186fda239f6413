"""Right kernels in the styles that people write, as texts: none of them may be called wrong."""

import numpy as np

HEADS = {
    "forward": """
def kernel(src, g, b, epsilon, running_mean=None, running_variance=None, src_1=None):
    old, one = (running_mean, running_variance), np.ones(src.shape[-1], vector)
    g, b = one if g is None else g, 0 * one if b is None else b
""",
    "inference": """
def kernel(src, m, v, g, b, epsilon):
    g, b = np.ones_like(m) if g is None else g, np.zeros_like(m) if b is None else b
""",
    "backward": """
def kernel(src, diff_dst, m, v, g, epsilon, dst=None):
    g = np.ones_like(m) if g is None else g
    rows, r = diff_dst.reshape(-1, diff_dst.shape[-1]), 1 / np.sqrt(v + vector(epsilon))
""",
    "double": """
def kernel(src, diff_dst, m, v, g, gg, h, k, epsilon):
    g, h, k = (np.zeros_like(m) + w if a is None else a for a, w in ((g, 1), (h, 0), (k, 0)))
    r = 1 / np.sqrt(v + vector(epsilon))
""",
}
EACH = """
    x, axes, n = src, tuple(range(src.ndim - 1)), vector(max(1, src[..., 0].size))
    e = vector(epsilon)
"""
NORMALIZE = "return (x - m) / np.sqrt(v + e) * g + b, m, v"
TWO = "m = x.sum(axes) / n; d = x - m; v = (d * d).sum(axes) / n"
SQUARES = "m = x.mean(axes); v = np.maximum((x * x).mean(axes) - m * m, 0)"
WIDE = "x = src.astype(float); m = x.mean(axes); v = x.var(axes)"
TO_DATA = "return ((x - m) / np.sqrt(v + epsilon) * g + b).astype(src.dtype), m.astype(vector), \
v.astype(vector)"
SUMS = "xh = (x - m) * r; db = diff_dst.sum(axes); dg = (diff_dst * xh).sum(axes)"
GRADIENT = "return g * r * (diff_dst - db / n - xh * dg / n), dg, db"
IN_FLOAT32 = "dt, x = src.dtype, src.astype('f4'); diff_dst = diff_dst.astype('f4')"
TO_16 = "return (g * r * (diff_dst - db / n - xh * dg / n)).astype(dt), dg, db"
POWERS = """x, dy = x.astype(vector) - m, diff_dst.astype(vector) * g; s = v + e
    dv = (dy * x).sum(axes) * vector(-0.5) * s ** vector(-1.5)
    diff_src = dy * r + dv * 2 / n * x - (dy * r).sum(axes) / n
    return diff_src.astype(src.dtype), (diff_dst * x * r).sum(axes), \
diff_dst.astype(vector).sum(axes)"""
RUN = "return (x - m) / np.sqrt(v + e) * g + b, m, v, "
DOUBLE = """xh = (x - m) * r
    a, c = diff_dst.sum(axes) / n, gg.sum(axes) / n
    p, q, s = ((y * z).sum(axes) / n for y, z in ((diff_dst, xh), (gg, xh), (diff_dst, gg)))
    t = xh * (c * a - s + 3 * p * q) + q * (a - diff_dst) + p * (c - gg)
    return (g * r * r * t + h * r * (diff_dst - a - xh * p), g * r * (gg - c - xh * q) + h * xh + k,
            n * r * (s - c * a - q * p))"""
ANY, F16, BF16, F64 = (
    {"arithmetic": "any"}, {"dtypes": "float16"}, {"dtypes": "bfloat16"}, {"dtypes": "float64"},
)  # fmt: skip
#: A name: the operation, options of its check, and the text.
STYLES = {
    "two passes": ("forward", {}, f"{TWO}; {NORMALIZE}"),
    "two passes, doubles": ("forward", {}, f"{WIDE}; {TO_DATA}"),
    "two passes of float64": ("forward", F64, f"{TWO}; {NORMALIZE}"),
    "np.mean and np.var": ("forward", {}, f"m = x.mean(axes); v = x.var(axes); {NORMALIZE}"),
    "squares": ("forward", ANY, f"{SQUARES}; {NORMALIZE}"),
    "squares of doubles": ("forward", {}, f"x = src.astype(float); {SQUARES}; {TO_DATA}"),
    "folded": ("forward", ANY,
               f"{TWO}; s = g / np.sqrt(v + e); return x * s + (b - m * s), m, v"),
    "as XLA does": ("forward", ANY,
                    f"{SQUARES}; s = 1 / np.sqrt(v + e) * g; return (x - m) * s + b, m, v"),
    "shifted by the first row": ("forward", ANY, f"""
    p = x.reshape(-1, x.shape[-1])[0] if x.size else 0 * g
    d = x - p; s, q = d.sum(axes) / n, (d * d).sum(axes) / n
    m, v = p + s, np.maximum(q - s * s, 0); {NORMALIZE}"""),
    "Welford": ("forward", {}, f"""
    m = v = 0 * one
    for k, row in enumerate(x.reshape(-1, x.shape[-1]), 1):
        d = row - m; m = m + d / vector(k); v = v + d * (row - m)
    v = v / n; {NORMALIZE}"""),
    "Chan, blocks of 64 rows": ("forward", {}, f"""
    m, v, count = 0 * one, 0 * one, 0
    for k in range(0, x[..., 0].size, 64):
        part = x.reshape(-1, x.shape[-1])[k : k + 64]; c = len(part)
        d, total = part.mean(0) - m, vector(count + c)
        v = v + ((part - part.mean(0)) ** 2).sum(0) + d * d * (count * c / total)
        m = m + d * (c / total); count += c
    v = v / n; {NORMALIZE}"""),
    "einsum": ("forward", {}, f"""
    y = x.reshape(-1, x.shape[-1]); m = np.einsum("nc->c", y) / n
    v = np.einsum("nc,nc->c", y - m, y - m) / n; {NORMALIZE}"""),
    "a power": ("forward", {}, f"{TWO}; return d * (v + e) ** vector(-0.5) * g + b, m, v"),
    "a product by ones": ("forward", {}, f"""
    y = x.reshape(-1, x.shape[-1]); w = np.ones(len(y), vector)
    m = w @ y / n; v = w @ ((y - m) ** 2) / n; {NORMALIZE}"""),
    "views, channels first": ("forward", {}, """
    y = np.moveaxis(x, -1, 0).reshape(x.shape[-1], -1)
    m, v = y.sum(1) / n, 0; d = y - m[:, None]; v = (d * d).sum(1) / n
    d = d / np.sqrt(v + e)[:, None] * g[:, None] + b[:, None]
    return np.moveaxis(d.reshape(x.shape[-1], *x.shape[:-1]), 0, -1), m, v"""),
    "channel by channel": ("forward", {}, """
    y, m, v = np.empty_like(x), 0 * one, 0 * one
    for c in range(x.shape[-1]):
        m[c] = x[..., c].sum() / n; d = x[..., c] - m[c]; v[c] = (d * d).sum() / n
        y[..., c] = d / np.sqrt(v[c] + e) * g[c] + b[c]
    return y, m, v"""),
    "in place": ("forward", {}, """
    y = x.copy(); m = y.sum(axes) / n; y -= m; v = (y**2).sum(axes) / n
    y /= np.sqrt(v + e); y *= g; y += b; return y, m, v"""),
    "reversed rows": ("forward", {}, f"""
    y = x.reshape(-1, x.shape[-1])[::-1]; m = y.sum(0) / n; v = ((y - m) ** 2).sum(0) / n
    {NORMALIZE}"""),
    "dst alone": ("forward", {}, f"{TWO}; return d / np.sqrt(v + e) * g + b"),
    "float16 in float32": ("forward", F16, f"""x = x.astype(vector); {TWO}
    return (d / np.sqrt(v + e) * g + b).astype(src.dtype), m, v"""),
    "float16 in doubles": ("forward", F16, f"{WIDE}; {TO_DATA}"),
    "bfloat16 in float32": ("forward", BF16, f"""x = x.astype(vector); {TWO}
    return (d / np.sqrt(v + e) * g + b).astype(src.dtype), m, v"""),
    "a ReLU": ("forward", {"relu": True},
               f"{TWO}; return np.maximum(d / np.sqrt(v + e) * g + b, 0), m, v"),
    "a ReLU by a mask": ("forward", {"relu": True},
                         f"{TWO}; y = d / np.sqrt(v + e) * g + b; y[y < 0] = 0; return y, m, v"),
    "an addition and a ReLU": ("forward", {"relu": True, "add": True}, f"""
    {TWO}; return np.maximum(d / np.sqrt(v + e) * g + b + src_1, 0), m, v"""),
    "running statistics": ("forward", {"correction": 1}, f"""{TWO}
    u = v * (n / max(1, n - 1)); {RUN} 3 * old[0] / 4 + m / 4, 3 * old[1] / 4 + u / 4"""),
    "running statistics, ddof": ("forward", {"correction": 1}, f"""{TWO}
    u = x.var(axes, ddof=1) if n > 1 else v
    {RUN} 3 * old[0] / 4 + m / 4, 3 * old[1] / 4 + u / 4"""),
    "running statistics, a difference": ("forward", {"correction": 0}, f"""{TWO}
    {RUN} old[0] - (old[0] - m) / 4, old[1] + (v - old[1]) / 4"""),
    "dst and running statistics": ("forward", {"correction": 1}, f"""{TWO}
    u = v * (n / max(1, n - 1))
    return d / np.sqrt(v + e) * g + b, 3 * old[0] / 4 + m / 4, 3 * old[1] / 4 + u / 4"""),
    "inference": ("inference", {}, "return (x - m) / np.sqrt(v + e) * g + b"),
    "inference, folded": ("inference", ANY, "s = g / np.sqrt(v + e); return x * s + (b - m * s)"),
    "inference, float16": ("inference", F16 | ANY, """s = g / np.sqrt(v + e)
    return (x.astype(vector) * s + (b - m * s)).astype(x.dtype)"""),
    "gradient": ("backward", {}, f"{SUMS}; {GRADIENT}"),
    "gradient of float64": ("backward", F64, f"{SUMS}; {GRADIENT}"),
    "gradient, n outside": ("backward", {}, f"""{SUMS}
    return g * r / n * (n * diff_dst - xh * dg - db), dg, db"""),
    "gradient, powers": ("backward", {}, POWERS),
    "gradient, powers, float64": ("backward", F64, POWERS),
    "gradient, powers, bfloat16": ("backward", BF16, POWERS),
    "gradient in steps": ("backward", {}, f"""{SUMS}; d = x - m; s = np.sqrt(v + e)
    dx = diff_dst * g; ds = -1 / (s * s) * (dx * d).sum(axes)
    dq = np.ones_like(x) / n * (ds / (2 * s))
    t = dx / s + 2 * d * dq; return t - t.sum(axes) / n, dg, db"""),
    "jax.vjp": ("backward", {"own_statistics": True}, """
    d = x - x.sum(axes) / n; s = (d * d).sum(axes) / n + e; r = 1 / np.sqrt(s); dx = diff_dst * g
    t = dx * r - (dx * d).sum(axes) * (r / s) * d / n
    return t - t.sum(axes) / n, (diff_dst * d * r).sum(axes), diff_dst.sum(axes)"""),
    "own doubles": ("backward", {"own_statistics": True}, """
    x, dy = src.astype(float), diff_dst.astype(float)
    m, v = (x.mean(axes), x.var(axes)) if x.size else (m, v)
    r = 1 / np.sqrt(v + epsilon); xh = (x - m) * r; db = dy.sum(axes); dg = (dy * xh).sum(axes)
    diff_src = g * r * (dy - (db + xh * dg) / n)
    return [a.astype(vector) for a in (diff_src, dg, db)]"""),
    "gradient, centered": ("backward", ANY, f"""{SUMS}; y = diff_dst - db / n
    return g * r * (y - xh * (y * xh).sum(axes) / n), dg, db"""),
    "gradient, coefficients": ("backward", {}, f"""{SUMS}; p = (diff_dst * (x - m)).sum(axes)
    a = g * r; return a * diff_dst - a * r * r * p / n * (x - m) - a * db / n, p * r, db"""),
    "gradient, folded": ("backward", ANY, f"""{SUMS}; a = g * r; c = -a * r * dg / n
    return a * diff_dst + c * x + (-c * m - a * db / n), dg, db"""),
    "gradient, einsum": ("backward", {}, """xh = (x.reshape(rows.shape) - m) * r
    db, dg = np.einsum("nc->c", rows), np.einsum("nc,nc->c", rows, xh)
    return (g * r * (rows - db / n - xh * (dg / n))).reshape(x.shape), dg, db"""),
    "gradient, blocks": ("backward", {}, """xh = (x.reshape(rows.shape) - m) * r
    db = dg = np.zeros_like(m)
    for k in range(0, len(rows), 128):
        db = db + rows[k : k + 128].sum(0); dg = dg + (rows * xh)[k : k + 128].sum(0)
    return (g * r * (rows - db / n - xh * (dg / n))).reshape(x.shape), dg, db"""),
    "gradient, a result with gaps": ("backward", {}, f"""{SUMS}
    y = np.empty((*x.shape, 2), x.dtype); y[..., 1] = g * r * (diff_dst - db / n - xh * dg / n)
    return y[..., 1], dg, db"""),
    "gradient, float16": ("backward", F16, f"{IN_FLOAT32}; {SUMS}; {TO_16}"),
    "gradient, bfloat16": ("backward", BF16, f"{IN_FLOAT32}; {SUMS}; {TO_16}"),
    "gradient, a wider result": ("backward", BF16, f"{IN_FLOAT32}; {SUMS}; {GRADIENT}"),
    "diff_src alone": ("backward", {}, f"{SUMS}; {GRADIENT}".removesuffix(", dg, db")),
    "gradient, given statistics": ("backward", {"is_training": False}, f"""{SUMS}
    return diff_dst * (g * r), (diff_dst * (x - m)).sum(axes) * r, db"""),
    "given statistics, folded": ("backward", {"is_training": False, **ANY}, f"""{SUMS}
    return diff_dst * (g * r), ((diff_dst * x).sum(axes) - m * db) * r, db"""),
    "gradient of a ReLU": ("backward", {"relu": True},
                           f"diff_dst = np.where(dst > 0, diff_dst, 0); {SUMS}; {GRADIENT}"),
    "gradient of a ReLU, a mask": ("backward", {"relu": True},
                                   f"diff_dst = diff_dst * (dst > 0); {SUMS}; {GRADIENT}"),
    "gradient of what is added": ("backward", {"relu": True, "add": True},
        f"diff_dst = np.where(dst > 0, diff_dst, 0); {SUMS}; {GRADIENT}, diff_dst"),
    "gradient of the gradient": ("double", {}, DOUBLE),
    "gradient of the gradient, float64": ("double", F64, DOUBLE),
}  # fmt: skip


def style(name):
    """(the operation, options of its check, the function)"""
    operation, options, text = STYLES[name]
    space = {"np": np, "vector": np.float64 if options.get("dtypes") == "float64" else np.float32}
    exec(HEADS[operation] + EACH + f"    {text.strip()}\n", space)
    return operation, options, space["kernel"]

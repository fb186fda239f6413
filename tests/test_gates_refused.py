"""Gates that are refused: what does not go together, or does not fit. Nothing is written then."""

import numpy as np
import pytest
from cases import EPSILON, all_bits
from relu_gates import GATES, PLAIN, forward, gated, plain, problem

import bn_ext

pytestmark = pytest.mark.quick


def test_arguments_that_do_not_go_together(rng):
    p = problem(rng, (4, 3, 5), "NCX")
    gates = {name: getattr(p, name) for name in GATES}
    some = {"beta": p.beta, "dst": p.dst}

    def refused(message, **options):
        calls = [bn_ext.batch_norm_backward]
        if "diff_src_1" not in options:
            calls.append(bn_ext.batch_norm_backward_reduce)
        for call in calls:
            names = PLAIN if call is bn_ext.batch_norm_backward else PLAIN[:3]
            more = {"epsilon": EPSILON} if call is bn_ext.batch_norm_backward else {}
            arguments = [getattr(p, name) for name in names]
            with pytest.raises(ValueError, match=message):
                call(*arguments, data_format="NCX", **more, **options)

    exactly = "^beta, dst and workspace: expected exactly one of them with relu=True, got "
    refused(exactly + "none$", relu=True)
    refused(exactly + "beta and dst$", relu=True, **some)
    refused(exactly + "beta and dst and workspace$", relu=True, **gates)
    for name, array in gates.items():
        refused(f"^relu: expected True with {name}, got False$", **{name: array})
    more = "^diff_src_1: expected dst or workspace with it, and relu=True, got "
    refused(more + "relu=False$", diff_src_1=True)
    refused(more + "beta, which knows nothing of a src_1$", relu=True, beta=p.beta, diff_src_1=True)
    for name in ("variance", "epsilon"):
        extra = {"variance": p.variance, "epsilon": EPSILON}
        del extra[name]
        with pytest.raises(ValueError, match=f"^{name}: expected with beta, got None$"):
            bn_ext.batch_norm_backward_reduce(
                p.src, p.diff_dst, p.mean, data_format="NCX", relu=True, beta=p.beta, **extra
            )
    with pytest.raises(ValueError, match=r"^gamma: expected shape \(3,\)"):
        bn_ext.batch_norm_backward_reduce(
            p.src, p.diff_dst, p.mean, data_format="NCX", gamma=p.gamma[1:]
        )
    workspace = np.zeros_like(p.workspace)
    with pytest.raises(ValueError, match="^relu: expected True with workspace, got False$"):
        forward(p, workspace=workspace)
    for flag in ("relu", "diff_src_1"):
        with pytest.raises(TypeError, match=f"^{flag}: expected True or False, got 2$"):
            p.take(bn_ext.batch_norm_backward, *PLAIN, data_format="NCX", **{flag: 2})


def test_gates_that_do_not_fit(rng):
    p = problem(rng, (4, 3, 5), "NCX")

    def refused(kind, message, backward_only=False, **gate):
        out = tuple(np.full_like(a, 7) for a in (p.src, p.mean, p.mean, p.src))
        add = "beta" not in gate
        with pytest.raises(kind, match=message):
            p.take(
                bn_ext.batch_norm_backward, *PLAIN, relu=True, data_format="NCX", diff_src_1=add,
                out=out if add else out[:3], **gate,
            )  # fmt: skip
        assert all((a == 7).all() for a in out)
        if "workspace" in gate and not backward_only:
            dst = np.full_like(p.src, 7)
            with pytest.raises(kind, match=message):
                forward(p, relu=True, out=dst, **gate)
            assert (dst == 7).all()

    refused(TypeError, "^dst: expected float32, like src, got float64", dst=p.dst.astype(float))
    refused(ValueError, r"^dst: expected shape \(4, 3, 5\), like src, got", dst=p.dst[1:])
    wide = p.beta.astype(float)
    refused(TypeError, "^beta: expected float32, like mean, got float64$", beta=wide)
    refused(ValueError, r"^beta: expected shape \(3,\)", beta=p.beta[1:])
    refused(TypeError, "^workspace: expected uint8, got bool", workspace=p.workspace.astype(bool))
    refused(
        ValueError, r"^workspace: expected shape \(8,\), a bit for each element of src, got \(7,\)",
        workspace=p.workspace[1:],
    )  # fmt: skip
    refused(
        ValueError, r"^workspace: expected a contiguous array, got one with strides \(-1,\)",
        workspace=p.workspace[::-1],
    )  # fmt: skip
    refused(TypeError, "^workspace: expected an array, got int$", backward_only=True, workspace=1)
    frozen = p.workspace.copy()
    frozen.flags.writeable = False
    assert all_bits(gated(p, "workspace")) == all_bits(plain(p))
    with pytest.raises(ValueError, match="^workspace: expected a writable array, got a read-only"):
        forward(p, relu=True, workspace=frozen)
    with pytest.raises(TypeError, match="^workspace: expected a numpy.ndarray, got bytes"):
        forward(p, relu=True, workspace=bytes(8))
    three = r"^out: expected \(diff_src, diff_gamma, diff_beta, diff_src_1\), .*, got 3 entries$"
    with pytest.raises(ValueError, match=three):
        gated(p, "dst", diff_src_1=True, out=(None, None, None))


def test_shared_memory(rng):
    """One array cannot be two results; what is written may not be the bits, or a part of dst."""
    p = problem(rng, (4, 3, 5), "NCX")
    both = np.empty_like(p.src)

    def refused(message, gate, **options):
        with pytest.raises(ValueError, match=message):
            gated(p, gate, **options)

    refused(
        r"^out: diff_src: shares memory with out: diff_src_1 \(it may be exactly src, exactly "
        r"diff_dst or exactly dst\)$",
        "dst", diff_src_1=True, out=(both, None, None, both),
    )  # fmt: skip
    whole = np.empty((5, 3, 5), np.float32)
    whole[1:] = p.dst
    p.dst = whole[1:]
    refused("^out: diff_src: shares memory with dst", "dst", out=(whole[:-1], None, None))
    memory = np.zeros(p.src.nbytes, np.uint8)
    p.workspace = memory[:8]
    overlaid = memory.view(np.float32).reshape(p.src.shape)
    refused("^out: diff_src: shares memory with work", "workspace", out=(overlaid, None, None))
    for out, workspace in ((overlaid, memory[:8]), (None, p.src.view(np.uint8).reshape(-1)[:8])):
        with pytest.raises(ValueError, match="shares memory with"):
            forward(p, relu=True, workspace=workspace, out=out)

"""The examples: training learns in every dtype, weights are the README's, folding keeps scores."""

import re

import numpy as np
import pytest
from cases import DATA_DTYPES, OUTPUTS
from processes import python
from tree import ROOT, load

import bn_ext

#: The dtypes of a short training; trainings are slow, so all dtypes but the first need --slow.
FAST_FIRST = [
    "float32",
    *(pytest.param(d, marks=pytest.mark.slow) for d in DATA_DTYPES if d != "float32"),
]


@pytest.fixture(scope="module")
def example():
    return load(ROOT / "examples" / "train_digits.py")


@pytest.mark.parametrize("dtype", FAST_FIRST)
def test_a_short_training_learns(example, dtype):
    *_, network = example.train(dtype=dtype, epochs=3)
    assert network.accuracies[-1] > 0.96
    assert network.losses[-1] < network.losses[0] / 5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_ways_to_normalize_learn_equally_well(example, dtype):
    (*_, ext), (*_, numpys) = (example.train(dtype=dtype, norm=n, epochs=4) for n in example.NORMS)
    np.testing.assert_allclose(ext.losses[0], numpys.losses[0], rtol=0.01)
    np.testing.assert_allclose(ext.losses, numpys.losses, rtol=0.2)
    assert abs(ext.accuracies[-1] - numpys.accuracies[-1]) < 0.03


def test_command_line(example, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(example, "TURNS", 3)
    path = tmp_path / "picture.png"
    assert example.main(["--epochs", "2", "--dtype", "float64", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    pattern = (
        r"a training step takes (\S+) ms, (\d+)% of it in bn_ext; with NumPy's formula (\S+) ms, "
        r"(\d+)% in the formula: (\S+) times as long\n(?s:.*)epoch 1 of 2: (?s:.*)"
        r"epoch 2 of 2: loss \d\.\d{4}, test accuracy (\d\d\.\d\d) %\n(?s:.*)"
    )
    numbers = re.fullmatch(pattern, capsys.readouterr().out).groups()
    kernel_ms, kernel_share, numpy_ms, numpy_share, ratio, last = map(float, numbers)
    assert abs(numpy_ms / kernel_ms / ratio - 1) < 0.1
    assert all(0 < share < 100 for share in (kernel_share, numpy_share))
    assert last > 80


@pytest.mark.parametrize(("seconds", "busy"), [([3, 2, 5], False), ([3, 1, 5], True)])
def test_a_busy_machine_is_named(example, seconds, busy):
    times = np.array([[(each, each / 2) for each in seconds]] * 2)
    assert example.report(times)[-1].startswith("BUSY: ") == busy


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dtype", "int8", "argument --dtype: invalid choice: 'int8'"),
        ("--epochs", "0", "expected 1 or more epochs, and a seed of 0 or more"),
        ("--seed", "-1", "expected 1 or more epochs, and a seed of 0 or more"),
        ("--plot", "no/such/folder.png", "got 'no/such/folder.png'"),
        (
            "--plot",
            "x.foo",
            "argument --plot: expected a file in a folder that exists, with the end",
        ),
    ],
)
def test_wrong_usage_is_found_before_training(
    example, monkeypatch, tmp_path, capsys, option, value, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example, "compare", None)
    with pytest.raises(SystemExit, match="2"):
        example.main([option, value])
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("steps", "epochs"), [(5, 0), (30, 1)])
def test_interrupted(example, monkeypatch, tmp_path, capsys, steps, epochs):
    monkeypatch.setattr(example, "compare", lambda dtype: np.ones((2, 3, 2)))
    loss, count = example.softmax_loss, iter(range(steps))

    def interrupt(*arguments):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(example, "softmax_loss", interrupt)
    path = tmp_path / "picture.png"
    assert example.main(["--epochs", "3", "--plot", str(path)]) == 130
    out, err = capsys.readouterr()
    assert err == "interrupted\n"
    assert out.count("test accuracy") == epochs == path.exists()


@pytest.mark.parametrize(
    ("level", "threads"), [(bn_ext.available_isas()[0], 16), (bn_ext.available_isas()[-1], 1)]
)
def test_a_training_has_the_weights_that_the_readme_says(level, threads):
    done = python(ROOT / "examples" / "same_bits.py", "--threads", threads, BN_EXT_ISA=level)
    assert done.returncode == 0, done.stderr
    pages = "".join((ROOT / name).read_text() for name in ("README.md", "docs/examples.md"))
    digests = re.findall(r"weights,?\s+`?([0-9a-f]{16})\b", pages + done.stdout)
    assert len(digests) == 3
    assert len({*digests}) == 1


@pytest.mark.slow
def test_folding_keeps_the_scores():
    """Folding changes no prediction, except where two scores are nearly equal."""
    done = python(ROOT / "examples" / "fold.py")
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"(\w+): 5 layers, 3 when folded; scores differ by (\S+) at most, (\S+) %", done.stdout
    )
    assert [dtype for dtype, *_ in lines] == ["float32", "float64"]
    for (_, off, same), bound in zip(lines, (1e-5, 1e-13), strict=True):
        assert float(off) < bound
        assert float(same) > 99.7


def test_a_dense_layer_folded(monkeypatch, rng):
    monkeypatch.syspath_prepend(ROOT / "examples")
    fold = load(ROOT / "examples" / "fold.py").fold
    norm, x, weight, bias = bn_ext.BatchNorm(5), *map(rng.standard_normal, ((30, 4), (4, 5), 5))
    norm.gamma[...], norm.beta[...] = rng.uniform(0.5, 2, (2, 5))
    norm.forward(x @ weight + bias)
    weight_folded, bias_folded = fold(weight, bias, norm)
    wanted = norm.eval().forward(x @ weight + bias)
    np.testing.assert_allclose(x @ weight_folded + bias_folded, wanted, rtol=1e-12, atol=1e-13)


def test_the_plain_loop_says_how_far_bn_ext_is():
    done = python(ROOT / "examples" / "plain_loop.py")
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == OUTPUTS

"""The examples: training learns in every dtype, weights are the README's, folding keeps scores."""

import itertools
import re
from pathlib import Path

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
    history = example.train(dtype=dtype, epochs=3)
    assert history.accuracies[-1] > 0.96
    assert history.losses[-1] < history.losses[0] / 5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_gradients_learn_equally_well(example, dtype):
    ours, numpys = (example.train(dtype=dtype, gradient=g, epochs=4) for g in ("bn_ext", "numpy"))
    np.testing.assert_allclose(ours.losses[0], numpys.losses[0], rtol=0.01)
    np.testing.assert_allclose(ours.losses, numpys.losses, rtol=0.2)
    assert abs(ours.accuracies[-1] - numpys.accuracies[-1]) < 0.03


def test_command_line(example, tmp_path, capsys):
    path = tmp_path / "picture.png"
    assert example.main(["--epochs", "2", "--dtype", "float64", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    epochs = re.findall(
        r"^epoch (\d) of 2: float64, loss \d\.\d+, accuracy \d+.\d %$", printed, re.M
    )
    assert epochs == ["1", "2"]
    accuracy = re.search(r"test accuracy (\d+\.\d\d) %, epoch 2", printed)
    assert float(accuracy[1]) > 80
    for dtype in DATA_DTYPES:
        times = re.search(rf"{dtype} +(\d+\.\d\d) +(\d+\.\d\d), [0-9.]+ times", printed)
        assert float(times[1]) > 0
        assert float(times[2]) > 0
    shares = re.search(r"of it is ([0-9.]+) % with bn_ext, ([0-9.]+) % with the formula", printed)
    assert all(float(share) > 0 for share in shares.groups())  # on a busy machine, even above 100


@pytest.mark.parametrize(("steps", "busy"), [([3, 2, 5], False), ([3, 1, 5], True)])
def test_a_busy_machine_is_named(example, monkeypatch, steps, busy):
    history = example.History(accuracies=[0.5])
    history.clock.steps, history.clock.gradients = steps, [0] * len(steps)
    times = dict.fromkeys(history.clock.both, 1.0)
    monkeypatch.setattr(history.clock, "milliseconds", lambda: times)
    assert example.report(history, "float32")[-1].startswith("BUSY: ") == busy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--epochs", "0"], "argument --epochs: expected a whole number, 1 or more, got '0'"),
        (["--epochs", "-1"], "argument --epochs: expected a whole number, 1 or more, got '-1'"),
        (["--seed", "-1"], "argument --seed: expected a whole number, 0 or more, got '-1'"),
        (["--plot", "no/such/folder.png"], "argument --plot: 'no/such/folder.png' cannot be wri"),
        (["--plot", "folder.png"], "argument --plot: 'folder.png' cannot be written: Is a direct"),
        (["--plot", "x"], "argument --plot: expected a file name that ends in "),
        (["--plot", "x.foo"], "argument --plot: expected a file name that ends in "),
    ],
)
def test_wrong_usage_is_found_before_training(
    example, monkeypatch, tmp_path, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example, "train", None)
    Path("folder.png").mkdir()
    with pytest.raises(SystemExit) as end:
        example.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize(("steps", "epochs"), [(5, 0), (30, 1)])
def test_interrupted(example, monkeypatch, tmp_path, capsys, steps, epochs):
    loss, count = example.softmax_loss, iter(range(steps))

    def interrupt(*arguments):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(example, "softmax_loss", interrupt)
    path = tmp_path / "picture.png"
    assert example.main(["--epochs", "3", "--plot", str(path)]) == 130
    out, err = capsys.readouterr()
    assert err == f"interrupted after {epochs} of 3 epochs\n"
    assert path.exists() == ("test accuracy" in out) == bool(epochs)


@pytest.mark.parametrize(
    ("level", "threads"), [*zip(bn_ext.available_isas(), itertools.cycle([16, 1]), strict=False)]
)
def test_a_training_has_the_weights_that_the_readme_says(level, threads):
    done = python(ROOT / "examples" / "same_bits.py", "--threads", threads, BN_EXT_ISA=level)
    assert done.returncode == 0, done.stderr
    said = "".join((ROOT / name).read_text() for name in ("README.md", "docs/examples.md"))
    digests = re.findall(r"weights,?\s+`?([0-9a-f]{16})\b", said + done.stdout)
    assert len(digests) == 3
    assert len({*digests}) == 1


@pytest.mark.slow
def test_folding_keeps_the_scores():
    """Folding changes no prediction, except where two scores are nearly equal."""
    done = python(ROOT / "examples" / "fold.py")
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"(\w+): 10 layers, 7 when folded; scores differ by (\S+) at most, (\S+) %", done.stdout
    )
    assert [dtype for dtype, *_ in found] == ["float32", "float64"]
    for (_, off, same), bound in zip(found, (1e-5, 1e-13), strict=True):
        assert float(off) < bound
        assert float(same) > 99.7


def test_a_dense_layer_folded(monkeypatch, rng):
    monkeypatch.syspath_prepend(ROOT / "examples")
    fold = load(ROOT / "examples" / "fold.py").fold
    norm = bn_ext.BatchNorm(5)
    x, weight, bias = rng.standard_normal((30, 4)), rng.standard_normal((4, 5)), np.arange(5.0)
    norm.gamma[...], norm.beta[...] = rng.uniform(0.5, 2, (2, 5))
    norm.forward(x @ weight + bias)
    weight_folded, bias_folded = fold(weight, bias, norm)
    wanted = norm.eval().forward(x @ weight + bias)
    np.testing.assert_allclose(x @ weight_folded + bias_folded, wanted, rtol=1e-12, atol=1e-13)


def test_the_plain_loop_says_how_far_bn_ext_is():
    done = python(ROOT / "examples" / "plain_loop.py")
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == OUTPUTS

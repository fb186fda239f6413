"""The example on real images learns, with either gradient, in every dtype."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_short_training_learns(example, dtype):
    history = example.train(dtype=dtype, epochs=8)
    assert history.accuracies[-1] > 0.96
    assert history.losses[-1] < history.losses[0] / 5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_gradients_learn_alike(example, dtype):
    ours, numpys = (example.train(dtype=dtype, gradient=g, epochs=4) for g in ("bn_ext", "numpy"))
    np.testing.assert_allclose(ours.losses[0], numpys.losses[0], rtol=0.01)
    np.testing.assert_allclose(ours.losses, numpys.losses, rtol=0.2)
    assert abs(ours.accuracies[-1] - numpys.accuracies[-1]) < 0.03


def test_command_line(example, tmp_path, capsys):
    path = tmp_path / "picture.png"
    history = example.main(["--epochs", "2", "--dtype", "bfloat16", "--plot", str(path)])
    assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"test accuracy {100 * history.accuracies[-1]:.2f} %" in printed
    assert "bn_ext" in printed
    assert "NumPy formula" in printed
    assert len(history.losses) == 2
    with pytest.raises(SystemExit):
        example.main(["--dtype", "int8"])

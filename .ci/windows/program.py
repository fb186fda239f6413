"""What users of Windows do, for the job `windows`, which has put kernel.dll into this folder:
threads, processes, a large file, a package in a folder with a space and an umlaut, a kernel in C.
"""

import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bn_ext

SHAPE = 400_000, 64  # 100 MB of float32


def digest(num_threads=None):
    src, diff_dst = np.random.default_rng(0).standard_normal((2, 20_000, 64), np.float32)
    mean, variance = src.mean(axis=0), src.var(axis=0)
    results = bn_ext.batch_norm_backward(
        src, diff_dst, mean, variance, epsilon=1e-5, num_threads=num_threads
    )
    return hashlib.sha256(b"".join(a.tobytes() for a in results)).hexdigest()


def threads():
    with ThreadPoolExecutor(3) as pool:
        assert {*pool.map(digest, [1, 2, 3] * 4)} == {digest(1)}


def processes():
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert {*pool.map(digest, [1, 2, 3])} == {digest(1)}


def a_large_file(folder):
    """A layer's results, written to a file, are those in memory."""
    src = np.memmap(folder / "src.bin", np.float32, "w+", shape=SHAPE)
    src[...] = np.random.default_rng(1).standard_normal(SHAPE, np.float32)
    parts = sum(bn_ext.Statistics(part, exact=True) for part in np.array_split(src, 7))
    whole = bn_ext.batch_norm_training(np.array(src), epsilon=1e-5, exact=True)
    assert np.array_equal(parts.mean.astype(whole.mean.dtype), whole.mean)
    dst = np.memmap(folder / "dst.bin", np.float32, "w+", shape=SHAPE)
    bn_ext.batch_norm_training(src, epsilon=1e-5, exact=True, out=(dst, None, None))
    assert np.array_equal(dst, whole.dst)


def kept_memory():
    """Memory of a large result is kept when it is gone, and given to the next."""
    src = np.ones((1 << 17, 64), np.float32)
    place = bn_ext.batch_norm_inference(src, src[0], src[0], epsilon=1).ctypes.data
    config = bn_ext.show_config(mode="dicts")
    assert config["kept_memory"] >= src.nbytes, config
    assert bn_ext.batch_norm_inference(src, src[0], src[0], epsilon=1).ctypes.data == place


def another_folder(folder):
    """The package and its library are found there."""
    shutil.copytree(Path(bn_ext.__file__).parent, folder / "bn_ext")
    code = "import bn_ext; print(*bn_ext.show_config(mode='dicts')['openmp_libraries'])"
    printed = python("-c", code, PYTHONPATH=str(folder)).stdout
    assert str(folder / "bn_ext") in printed, printed


def kernels(folder):
    """A mistake is named, and a crash ends neither the judge nor later cases."""
    for name in "kernel.dll", "kernels.py":
        shutil.copy(Path(__file__).parent / name, folder)
    for name, status, text in (
        ("right", 0, "0 of "),
        ("wrong", 1, "\nwrong:\n"),
        ("crash", 1, "crashed (exit status 0xc0000005)"),
    ):
        command = "-m", "bn_ext", "check", f"kernels.py:{name}", "--op", "inference", "--quick"
        done = python(*command, cwd=folder, status=status)
        assert text in done.stdout, done.stdout + done.stderr


def python(*words, cwd=None, status=0, **environment):
    command, variables = [sys.executable, *words], {**os.environ, **environment}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        stdout=-1,
        stderr=-1,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bn ext ü ", ignore_cleanup_errors=True) as name:
        place = Path(name)
        for step in threads, processes, kept_memory:
            step()
            print(step.__name__, flush=True)
        for step in a_large_file, another_folder, kernels:
            step(place)
            print(step.__name__, flush=True)

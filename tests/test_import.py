"""Importing, whatever else is in the process."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import printed_by, strict

import bn_ext
from bn_ext import _core


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_import_next_to_a_library_with_such_a_name(tmp_path):
    library = Path(np._core._multiarray_umath.__file__)
    copy = os.path.join(os.fsencode(tmp_path), b"caf\xe9.so")
    shutil.copy(library, copy)
    code = (
        "import mmap, sys\n"
        f"file = open({copy!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "import bn_ext; bn_ext.show_config()"
    )
    printed_by(code)


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", bn_ext.__version__)


#: What users may rely on: a name that goes, or one that slips in, is a decision.
PUBLIC = {
    "bn_ext": {
        "BatchNorm",
        "BatchNormAddGradients",
        "BatchNormDoubleBackward",
        "BatchNormGradients",
        "BatchNormTraining",
        "__version__",
        "available_isas",
        "batch_norm_backward",
        "batch_norm_backward_apply",
        "batch_norm_backward_reduce",
        "batch_norm_canonical",
        "batch_norm_count",
        "batch_norm_double_backward",
        "batch_norm_inference",
        "batch_norm_sums",
        "batch_norm_training",
        "batch_norm_training_apply",
        "batch_norm_training_merge",
        "batch_norm_training_reduce",
        "batch_norm_training_stats",
        "get_isa",
        "mpi",
        "show_config",
        "specs",
    },
    "bn_ext.specs": {"ngraph", "onednn_graph", "pytorch", "tensorflow"},
    "bn_ext.specs.ngraph": {
        "BatchNormTraining", "BatchNormTrainingBackprop", "batch_norm_inference",
        "batch_norm_training", "batch_norm_training_backprop",
    },
    "bn_ext.specs.onednn_graph": {
        "BatchNormForwardTraining", "BatchNormTrainingBackprop", "BatchNormTrainingBackward",
        "batch_norm_forward_training", "batch_norm_inference", "batch_norm_training_backprop",
        "batch_norm_training_backward",
    },
    "bn_ext.specs.pytorch": {
        "BatchNormUpdateStats", "NativeBatchNorm", "NativeBatchNormBackward",
        "batch_norm_update_stats", "native_batch_norm", "native_batch_norm_backward",
    },
    "bn_ext.specs.tensorflow": {
        "FusedBatchNormEx", "FusedBatchNormGradV3", "FusedBatchNormV3", "fused_batch_norm_ex",
        "fused_batch_norm_grad_v3", "fused_batch_norm_v3",
    },
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    names = {}
    exec(f"from {module} import *", names)
    del names["__builtins__"]
    assert names.keys() == PUBLIC[module]
    for name, thing in names.items():
        assert isinstance(thing, str) or thing.__doc__, name


def test_import_needs_numpy_alone():
    code = (
        "import sys, numpy; before = set(sys.modules); import bn_ext, bn_ext.specs\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    new = {name for name in strict(code).stdout.split() if not name.startswith("_cython_")}
    # A build without OpenMP registers itself where threadpoolctl is installed.
    registered = set() if _core._has_openmp() else {"threadpoolctl"}
    assert new <= {"bn_ext", "numpy", "cython_runtime"} | registered


def test_import_leaves_the_environment_alone():
    code = "import os; old = dict(os.environ); import numpy, bn_ext; print(old == dict(os.environ))"
    assert strict(code).stdout.split() == ["True"]

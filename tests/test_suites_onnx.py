"""ONNX's own cases of BatchNormalization, and those that it converted from torch's modules.

pytest -m suites        needs onnx
"""

from pathlib import Path

import numpy as np
import pytest

import bn_ext

pytestmark = [pytest.mark.suites, pytest.mark.filterwarnings("ignore")]


def node_cases():
    """(model, inputs, outputs) of the cases that onnx makes."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases("BatchNormalization"):
        if case.model.graph.node[0].op_type == "BatchNormalization":
            for inputs, outputs in case.data_sets:
                yield case.model, inputs, outputs


def converted_cases():
    """The same for the cases that onnx has as files."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    for case in load_model_tests(kind="pytorch-converted"):
        if case.name.startswith("test_BatchNorm"):
            folder = Path(case.model_dir)
            for data in sorted(folder.glob("test_data_set_*")):
                inputs, outputs = (
                    [
                        onnx.numpy_helper.to_array(onnx.load_tensor(str(path)))
                        for path in sorted(data.glob(f"{kind}_*.pb"))
                    ]
                    for kind in ("input", "output")
                )
                yield onnx.load(str(folder / "model.onnx")), inputs, outputs


def computed(node, x, scale, bias, mean, variance):
    """What the operator returns, in version 6, 9, 14 or 15."""
    import onnx

    has = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    options = {"epsilon": has.get("epsilon", 1e-5), "data_format": "NCX"}
    if not has.get("training_mode", 0):
        return [bn_ext.batch_norm_inference(x, mean, variance, scale, bias, **options)]
    running = mean.copy(), variance.copy()
    options |= {"running_mean": running[0], "running_variance": running[1], "correction": 0}
    options["exponential_avg_factor"] = 1 - has.get("momentum", 0.9)
    return [bn_ext.batch_norm_training(x, scale, bias, **options).dst, *running]


@pytest.mark.parametrize("cases", [node_cases, converted_cases])
def test_onnx(ran, cases):
    import onnx

    for model, inputs, outputs in cases():
        (node,) = model.graph.node
        values = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        names = [each.name for each in model.graph.input if each.name not in values]
        values.update(zip(names, inputs, strict=True))
        results = computed(node, *(values[name] for name in node.input))
        for result, output in zip(results, outputs, strict=True):
            assert result.dtype == output.dtype
            np.testing.assert_allclose(result, output, rtol=0, atol=1e-6 * abs(output).max())
        ran[f"onnx {cases.__name__}", results[0].dtype.name] += 1

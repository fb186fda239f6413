"""The published operators, argument for argument.

`onednn_graph`, `ngraph` and `tensorflow` add to the general functions of `bn_ext` the names, order,
defaults, type tables and outputs of their specifications, and nothing else.
"""

from bn_ext.specs import ngraph, onednn_graph, tensorflow

__all__ = ["ngraph", "onednn_graph", "tensorflow"]


def __dir__() -> list[str]:
    return __all__

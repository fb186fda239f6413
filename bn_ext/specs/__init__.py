"""The published operators, with the arguments of their specifications.

`onednn_graph`, `ngraph` and `tensorflow` add to the general functions of `bn_ext` only what their
specifications define: names, order, defaults and types of arguments, and outputs.
"""

from bn_ext.specs import ngraph, onednn_graph, tensorflow

__all__ = ["ngraph", "onednn_graph", "tensorflow"]
__dir__ = __all__.copy

"""The published operators, argument for argument.

`onednn_graph`, `ngraph` and `tensorflow` are thin wrappers around
`bn_ext.batch_norm_backward`. They add the names, order, defaults, type tables and
outputs of their specifications, and nothing else.
"""

from bn_ext.specs import ngraph, onednn_graph, tensorflow

__all__ = ["ngraph", "onednn_graph", "tensorflow"]

"""The published operators, argument for argument.

`onednn_graph`, `ngraph` and `tensorflow` each hold thin sheets over
`bn_ext.batch_norm_backward`: their specs' names, order, defaults, type tables and
outputs, and nothing else.
"""

from bn_ext.specs import ngraph, onednn_graph, tensorflow

__all__ = ["ngraph", "onednn_graph", "tensorflow"]

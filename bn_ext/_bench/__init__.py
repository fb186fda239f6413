"""Problems, peers (what one could use instead of bn_ext), their times, and a table of these.

Used by `python -m bn_ext bench` and by the repository's benchmarks.
"""

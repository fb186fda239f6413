"""Problems, peers (what one could use instead of bn_ext), and a fair way to time bn_ext and peers.

Used by `python -m bn_ext bench` and by the repository's benchmarks.
"""

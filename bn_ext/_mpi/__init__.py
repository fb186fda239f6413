"""The modules behind bn_ext.mpi.

    parts.py       one rank's part of a call: its sums and its results
    agreement.py   whether arguments are the same on all ranks
    exchange.py    the collectives of a call

bn_ext.torch uses the first two.
"""

"""What bn_ext.mpi is made of: a rank's part, what ranks must have alike, a call's sums.

bn_ext.torch takes the first two.
"""

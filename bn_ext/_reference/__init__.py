"""The exact results, their limits, and the cases that bn_ext.testing runs."""

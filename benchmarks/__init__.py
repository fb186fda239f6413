"""bn_ext against the memory and against what one would use instead: python -m benchmarks."""

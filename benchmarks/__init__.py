"""bn_ext's time compared with the memory floor and with its peers': python -m benchmarks."""

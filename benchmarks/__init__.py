"""bn_ext compared with the memory floor and with its peers: python -m benchmarks."""

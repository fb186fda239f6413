"""What `bn-ext bench` measures: problems, peers, times. The repository's benchmarks add to it."""

"""Benchmarks: ratios measured inside one run, never asserted in tests. `make bench` runs all of them."""

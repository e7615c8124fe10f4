"""Benchmarks and studies: `make bench NAME=...`, `make study NAME=...`."""

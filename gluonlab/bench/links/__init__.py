"""Measures latency and bandwidth between all pairs of devices, and infers their topology."""

"""Latency and bandwidth between every two devices, and the topology that follows from them."""

"""Queries to NVML and CUDA about the machine's GPUs, and settings of their arithmetic."""

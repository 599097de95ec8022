"""Queries NVML and CUDA about the machine's GPUs, and sets the GPUs' arithmetic."""

"""Queries NVML and CUDA about the machine's GPUs, and sets how the GPUs compute."""

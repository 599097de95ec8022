"""The GPUs of this machine: what the driver tells of them (NVML), which of them CUDA shows, and how
they reach each other.
"""

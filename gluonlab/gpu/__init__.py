"""The machine's GPUs: what NVML tells of them, which CUDA shows, and how they reach each other."""

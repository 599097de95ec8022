"""The machine's GPUs: what NVML reports, which of them CUDA shows, and how they copy."""

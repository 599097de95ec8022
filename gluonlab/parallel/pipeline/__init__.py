"""Pipeline parallelism: stages of a network on several devices, and schedules of microbatches."""

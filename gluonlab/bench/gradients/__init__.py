"""``bench gradients``: allreduce, and allreduce with update, on gradients of ResNet-18."""

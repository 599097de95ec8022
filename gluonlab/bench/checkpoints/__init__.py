"""``bench checkpoints``: what checkpoints and the check of replicas cost a run's steps."""

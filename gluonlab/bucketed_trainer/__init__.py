"""From gradients to updated parameters: BucketedTrainer and what it is made of."""

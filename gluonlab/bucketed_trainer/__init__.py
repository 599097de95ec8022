"""BucketedTrainer: a gluon.Trainer that sums gradients in buckets of parameters."""

"""BucketedTrainer, a gluon.Trainer with buckets, and its parts."""

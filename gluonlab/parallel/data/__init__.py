"""Data parallelism: every device holds the whole network and works on its shard of a batch."""

"""Loads batches of images, augments them, and copies a shard of each batch to every device."""

"""Batches of a split, sharded, changed at random and sent to the devices."""

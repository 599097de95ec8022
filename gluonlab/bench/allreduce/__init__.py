"""``bench allreduce``: algorithms measured, priced and drawn."""

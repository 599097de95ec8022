"""``study learning-rate``: accuracy against the rate, for several numbers of devices."""

"""Allreduce as data: schedules of transfers, and modules that verify, run, price and draw them."""

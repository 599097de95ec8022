"""Allreduce as data: schedules of transfers, and modules that check, run, price and draw them."""

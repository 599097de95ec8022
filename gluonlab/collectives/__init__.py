"""Allreduce as data: schedules of transfers, which are checked, run, priced and drawn."""

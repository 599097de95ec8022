"""Allreduce as data: a schedule of transfers, checked, run, priced and drawn by programs that know
nothing of each other.
"""

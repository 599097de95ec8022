"""What training would take on machines that one does not have: predicted, and validated.

Operations are counted from a network's graph (`counting`), a roofline for each GPU gives the time
of a step (`roofline`), `collectives` prices the sums (`sums`), and published figures say how far
off it is (`validate`). Only `counting` and `networks` import MXNet.
"""

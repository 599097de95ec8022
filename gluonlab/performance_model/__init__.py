"""What training would take on machines that one does not have.

`predict` is asked. Operations are counted from a network's graph (`counting`), a roofline for each
GPU gives the time of a step (`roofline`), `sums` prices the sums of gradients, and published
figures say how far off it is (`published`; tools/prediction fits and validates the model).
"""

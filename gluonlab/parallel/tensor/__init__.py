"""Layers split by channels: each device has some channels of every layer that allows it.

Two operators join what the devices have (M. Shoeybi et al., "Megatron-LM", 2019, section 3):
`CopyOperator` in front of layers that each compute some outputs of the same input, and
`SumOperator` behind layers that each have some inputs of the same outputs (`replica.py`). Where
they stand follows from the network's graph (`layout.py`); between them each device has a graph of
its own (`layout.py`).
"""

"""Tensor parallelism: each device has some channels of every layer that allows it.

Two operators join the devices (M. Shoeybi et al., "Megatron-LM", 2019, section 3). `CopyOperator`
stands in front of layers that each compute some outputs of the same input. `SumOperator` stands
behind layers that each use some inputs of the same outputs (`replica.py`). `layout_planner.py`
derives their positions from the network's graph. Between them each device has a graph of its own
(`layout.py`).
"""

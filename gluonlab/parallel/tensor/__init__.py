"""Tensor parallelism: the channels of layers are divided between the devices.

- `replica.py` runs the network. Two operators connect the devices (M. Shoeybi et al.,
  "Megatron-LM", 2019, section 3). `CopyOperator` precedes a layer whose outputs are divided: every
  device reads the whole input. `SumOperator` follows a layer whose inputs are divided: every device
  computes only a partial sum of all outputs.
- `layout_planner.py` decides from the network's graph where the operators are needed.
- `layout.py` creates the graphs of each device between these operators.
"""

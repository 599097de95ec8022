"""Tensor parallelism: divides the channels of layers between devices.

- `replica.py` runs the network. Two operators connect the devices (M. Shoeybi et al.,
  "Megatron-LM", 2019, section 3). `CopyOperator` precedes a layer whose outputs are divided: every
  device reads the complete input. `SumOperator` follows a layer whose inputs are divided: every
  device computes only a partial sum of each output.
- `layout_planner.py` determines from the network's graph where these operators are needed.
- `layout.py` creates each device's graphs between these operators.
"""

"""Finds schedules for the links of a machine with a constraint solver, and a lower bound.

The solver minimizes the number of steps, because each step costs latency. It also minimizes the
number of rounds per chunk, because each round costs time for large buffers. It finds the Pareto
front of both. The terms:

- *Round*: in a round, each link carries as many chunks as it has *lanes*. A step has as many rounds
  as its busiest link needs.
- *Turning point* k of a chunk: in the first k steps the chunk is summed on its owner, along a tree.
  In the remaining steps the sum is copied to all ranks, along another tree. Chunks may have
  different turning points, so some chunks are still summed while others are already copied.

If the links are proved to have a symmetry (`symmetry_groups`), the search imposes it on the
schedule. The linear relaxation bounds the rounds from below (`rounds_lower_bound`), and CP-SAT of
OR-tools finds the schedule (`find_schedule`). Source of the idea: Cai, Liu, Maleki, Musuvathi,
Mytkowicz, Nelson, Saarikivi, "Synthesizing optimal collective algorithms" (2021), for all-gathers
with the same number of rounds in each step.
"""

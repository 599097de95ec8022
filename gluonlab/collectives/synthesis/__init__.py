"""Uses a constraint solver to find schedules for a machine's links, and computes a lower bound.

The solver minimizes the number of steps, because each step costs latency. It also minimizes the
number of rounds per chunk, because each round costs time for large buffers. The search finds the
Pareto front of both numbers. The modules use these terms:

- *Round*: in a round, each link carries as many chunks as it has *lanes*. A step has as many rounds
  as its busiest link needs.
- *Turning point* k of a chunk: in the first k steps the chunk is summed on its owner, along a tree.
  In the remaining steps the sum is copied to all ranks, along another tree. Chunks may have
  different turning points, so some chunks are still summed while others are already copied.

If the links have a symmetry (`symmetry_groups`), the search imposes this symmetry on the schedule.
A linear relaxation gives a lower bound on the rounds (`rounds_lower_bound`), and OR-tools' CP-SAT
solver finds the schedule (`find_schedule`). Source of the idea: Cai, Liu, Maleki, Musuvathi,
Mytkowicz, Nelson, Saarikivi, "Synthesizing optimal collective algorithms" (2021), for all-gathers
with the same number of rounds in each step.
"""

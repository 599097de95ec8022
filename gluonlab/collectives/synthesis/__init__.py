"""Schedules that a constraint solver has found for the links of a machine, with a lower bound.

The solver looks for an allreduce of S steps in which every chunk has an owner and a turning point
k. The chunk is summed on its owner in the first k steps, along a tree, and copied to all ranks in
the other steps, along another tree. Turning points may differ, so that some chunks are still summed
while others are already copied. The links' *lanes* are the numbers of chunks that each link carries
in a *round*. A step has as many rounds as its busiest link needs. Fewer steps cost less latency,
and fewer rounds per chunk cost less time for large buffers. The solver finds the Pareto front of
both.

The search imposes a symmetry of the links on the schedule, if one is proved to hold
(`symmetry_groups`). The linear relaxation bounds the rounds from below (`rounds_lower_bound`), and
CP-SAT of OR-tools finds the schedule (`find_schedule`). Source of the idea: Cai, Liu, Maleki,
Musuvathi, Mytkowicz, Nelson, Saarikivi, "Synthesizing optimal collective algorithms" (2021), for
all-gathers with one number of rounds per step.
"""

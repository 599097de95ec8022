"""Schedules found for the links of a machine by a constraint solver, with a bound from below.

An allreduce of S steps is sought in which every chunk has an owner and a turning point k: it is
summed up on its owner in the first k steps, on a tree, and copied to all in the others, on another.
Turning points may differ, so that some chunks are still summed up while others are on their way
back. The links' *lanes* say how many chunks each carries in a *round*; a step has as many rounds as
its busiest link needs. Fewer steps cost less latency, fewer rounds a chunk cost less time for large
buffers: what is found is a front of both.

The search imposes a symmetry of the links on the schedule where one is proved to hold
(`automorphisms`), the linear relaxation bounds the rounds from below (`relaxation`), and OR-tools'
CP-SAT finds the schedule (`search`). Source of the idea: Cai, Liu, Maleki, Musuvathi, Mytkowicz,
Nelson, Saarikivi, "Synthesizing optimal collective algorithms" (2021), for all-gathers with one
number of rounds a step.
"""

"""Measuring: ``python -m gluonlab.bench peers``, ``host``, ``allreduce`` and so on.

What is compared takes turns, some steps each per round, so that a machine that is slower for a
while is slower for all. `harness` has what all measurements share; each has a folder of its own
with its subjects, its jobs and its table.

In ``peers``, ``host``, ``images`` and ``threads`` every row has a worker process of its own
(`harness.rounds`, `worker`), because threads and scratch memory are settings of a process.
``allreduce`` and ``gradients`` compare what runs on the same arrays and the same threads, in one
process (`harness.turns`).
"""

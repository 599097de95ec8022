"""Measuring: ``python -m gluonlab.bench peers``, ``host``, ``allreduce`` and ``gradients``.

What is compared takes turns, some steps each per round, so that a machine that is slower for a
while is slower for all. In ``peers`` and ``host`` every row has a worker process of its own
(`gluonlab.bench.worker`, `gluonlab.bench.harness.rounds`), because threads and scratch memory are settings
of a process. ``allreduce`` and ``gradients`` compare what runs on the same arrays and the same
threads, in one process (`gluonlab.bench.harness.turns`).
"""

"""Measuring: ``python -m gluonlab.bench peers``, ``host``, ``allreduce`` and so on.

What is compared takes turns, some steps each per round: a machine that slows down for a while slows
down all of them. `harness` has what all measurements share; each has a folder of its own with its
subjects, its jobs and its table.

In ``peers``, ``host``, ``images`` and ``threads`` every row has a worker process of its own
(`harness.rounds`, `worker`), because threads and scratch memory are settings of a process.
``allreduce``, ``gradients``, ``splits`` and ``checkpoints`` compare what runs on the same threads,
in one process (`harness.turns`).
"""

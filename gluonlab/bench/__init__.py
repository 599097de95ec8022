"""Measuring: ``python -m gluonlab.bench allreduce``, ``links``, ``scaling`` and so on.

What is compared takes turns, some steps each per round: a machine that slows down for a while slows
down all of them. `harness` has what all measurements share.

In ``scaling`` every row has a worker process of its own (`harness.rounds.measure`, `worker`),
because threads and scratch memory are settings of a process. ``allreduce``, ``links`` and
``splits`` compare what runs on the same threads, in one process (`harness.rounds.time_in_turns`).

Measurements that developers of gluonlab make are scripts: tools/benchmarks.
"""

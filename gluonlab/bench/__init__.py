"""Measurements: ``python -m gluonlab.bench allreduce``, ``links``, ``scaling`` and so on.

Everything that is compared is interleaved, some steps each per round, so that a temporary slowdown
affects all of it. `harness` contains the shared parts of all measurements.

In ``scaling`` every row has its own worker process (`harness.interleaved_rounds.measure_subjects`,
`worker_main`), because threads and scratch memory are settings of a process. ``allreduce``,
``links`` and ``splits`` compare calls on the same threads, in one process
(`harness.interleaved_rounds.time_interleaved`).

Measurements for developers of gluonlab are scripts in tools/benchmarks.
"""

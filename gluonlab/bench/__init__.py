"""Measurements: ``gluonlab bench NAME``, and ``gluonlab allreduce bench``.

A measurement compares variants in interleaved rounds: each round runs a few steps of every variant,
so a temporary slowdown of the machine affects all variants. `harness` contains the parts that the
measurements share.

In ``processes``, each row of the table is for a number of devices and processes, and is measured in
a separate worker process (`harness.interleaved_rounds.measure_subjects`, `worker_main`). Separate
processes are needed because threads and scratch memory are set per process. ``allreduce bench``,
``links`` and ``strategies`` compare calls on the same threads in one process
(`harness.interleaved_rounds.time_interleaved`).

Measurements for developers of gluonlab are scripts in tools/benchmarks.
"""

"""Measurements: ``gluonlab bench NAME``, and ``gluonlab allreduce bench``.

A measurement compares variants in interleaved rounds: each round runs a few steps of every variant.
So a temporary slowdown of the machine affects all variants. `harness` contains the parts that the
measurements share.

In ``processes``, each row of the table is a number of devices and processes, and is measured in its
own worker process (`harness.interleaved_rounds.measure_subjects`, `worker_main`). The reason is
that threads and scratch memory are settings of a process. ``allreduce bench``, ``links`` and
``strategies`` compare calls on the same threads in one process
(`harness.interleaved_rounds.time_interleaved`).

Measurements for developers of gluonlab are scripts in tools/benchmarks.
"""

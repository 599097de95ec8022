"""Implementation of ``gluonlab bench NAME`` and ``gluonlab allreduce bench``.

A measurement compares variants in interleaved rounds: each round runs a few steps of every variant,
so a temporary slowdown of the machine affects all variants. `harness` contains the parts that the
measurements share.

``bench processes`` measures each combination of devices and processes in a separate worker process
(`harness.interleaved_rounds.measure_subjects`, `worker_main`). Separate processes are needed
because the number of threads and the scratch memory are set per process. ``allreduce bench``,
``links`` and ``strategies`` compare calls on the same threads in one process
(`harness.interleaved_rounds.time_interleaved`).

Benchmarks for gluonlab's developers are scripts in tools/benchmarks.
"""

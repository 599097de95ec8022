"""Measuring gluonlab beside its peers, and what the host's Python costs a step: ``python -m gluonlab.bench peers`` and ``host``.

Every row of a table is measured by a worker process of its own (`gluonlab.bench.worker`), because threads and scratch memory are
settings of a process. The workers take turns, some steps each per round (`gluonlab.bench.rounds`), so that a machine that is
slower for a while is slower for all of them.
"""

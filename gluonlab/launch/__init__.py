"""Training by several processes, each with its own devices, that a launcher starts.

A backend is a `gluonlab.kvstores.process_groups.SummingGroup`. Its constructor joins the processes
and calls `gluonlab.engine.local_processes.set_local_process_count`. ``own_devices`` returns the
devices of its process, ``sum_array`` sums an array over the processes, and ``leave`` leaves the
group. A backend whose servers can update sets ``servers`` and implements ``serve``. ``--backend``
takes its ``name``, which is a key of `BACKENDS` in `backends.py`.
"""

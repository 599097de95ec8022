"""Training in several processes that a launcher starts, each with its own devices.

`BACKENDS` in `backends.py` contains a class for each value of ``--backend``. Each class derives
from `gluonlab.kvstores.process_groups.SummingGroup`:

- The constructor joins the group and calls
  `gluonlab.engine.local_processes.set_local_process_count`.
- ``own_devices`` returns the devices of this process.
- ``sum_array`` sums an array over the processes.
- ``leave`` leaves the group.
- If the group's servers can update weights, the class sets ``servers`` and implements
  ``start_serving_weights``.
"""

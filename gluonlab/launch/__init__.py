"""Training by many processes that a launcher has started, each with devices of its own.

A backend is a `gluonlab.kvstores.process_groups.SummingGroup`: it joins the processes when it is
made and
tells how many of them share its host (`gluonlab.engine.local_processes.set_local_process_count`), says which devices
its process has (``own_devices``), sums an array over the processes (``sum_array``), and leaves them
(``leave``). One with servers that can update says how many, and gives them weights (``serve``). Its
``name`` is what --backend takes, and what makes it there (`backends.py`).
"""

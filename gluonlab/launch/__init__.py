"""Training by many processes that a launcher has started, each with devices of its own.

A backend is a `gluonlab.kvstores.groups.SummingGroup`: it joins the processes when it is made and
tells how many of them share its host (`gluonlab.engine.neighbours.tell`), names the devices of its
process (``place``), sums an array over the processes (``sum_array``), and leaves them (``leave``).
Its ``name`` is what --backend takes (`backends.py`).
"""

"""python -m gluonlab.doctor --prove: whether the GPUs, and all that runs on them, work rightly.

Each trial is a module that runs in a process of its own and tells what it sees, answer by answer,
so that one that hangs or crashes ends no other, and what it had told by then counts.
"""

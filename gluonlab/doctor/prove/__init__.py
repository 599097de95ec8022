"""python -m gluonlab.doctor --prove: whether the GPUs, and all that runs on them, work rightly.

Each trial is a module that runs in a process of its own and answers line by line. So a trial that
hangs or crashes ends no other, and the answers that it has given count.
"""

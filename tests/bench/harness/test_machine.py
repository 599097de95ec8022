"""What a record says of the machine."""

from gluonlab.bench.harness.machine import busy_seconds


def test_other_processes_are_counted_from_the_ticks_of_proc_stat():
    # all but idle and iowait
    assert busy_seconds("cpu  100 20 30 800 10 1 2 3 0 0\ncpu0 1 2 3", ticks_per_second=100) == 1.56

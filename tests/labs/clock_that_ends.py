"""The end of a notebook's time, once its cell has come to where the test wants it.

Its limits then only end a hang, and no test guesses how fast this machine starts a notebook.
"""

import os

# The folder of a notebook that is graded is an argument of the processes that watch over it, whose
# clock jumps far beyond all limits when the file of their module appears there.
SITE = """
import os
import time

with open("/proc/self/cmdline", "rb") as file:
    words = os.fsdecode(file.read()).split("\\0")
package, _, module = "".join(words[2:3]).rpartition(".")
if package == "gluonlab.exercises" and module in ("run_submission", "supervisor"):
    place = os.path.join(words[4], "time-is-over-" + module)
    clock = time.monotonic
    time.monotonic = lambda: clock() + 1e6 * os.path.exists(place)
"""
SUBMISSION, SUPERVISOR = "run_submission", "supervisor"  # whose clock jumps


def install(folder, monkeypatch):
    """Set such a clock in the processes that a grader starts from now on."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def end_the_time_of(module):
    """The source of a cell that ends its notebook's time for one of the processes around it."""
    return (
        "import os\n"
        "folder = os.path.dirname(os.environ['GLUONLAB_GRADES'])\n"
        f"open(os.path.join(folder, 'time-is-over-{module}'), 'w').close()\n"
    )

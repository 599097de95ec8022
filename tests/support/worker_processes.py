"""What has become of a process."""

from pathlib import Path


def gone(pid):
    """Whether there is no such process, or only what its parent has not asked about yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True

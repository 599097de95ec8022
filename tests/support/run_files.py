"""Reader of run folders, independent of gluonlab."""

import json


def read_metrics(folder):
    """Return the lines of metrics.jsonl as dictionaries."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

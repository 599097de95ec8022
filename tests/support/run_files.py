"""What a run's folder holds, read without gluonlab."""

import json


def read_metrics(folder):
    """The lines of metrics.jsonl as dictionaries."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

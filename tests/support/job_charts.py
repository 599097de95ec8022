"""What AWS draws of a job's output, by the regular expressions of its request."""

import json
import re

LOSS, SPEED, ACCURACY = "train:loss", "train:images_per_second", "test:accuracy"


def metric_regexes(template):
    """Name -> regular expression of a request for a training job, a file."""
    found = json.loads(template.read_text(encoding="utf-8"))
    return {
        each["Name"]: each["Regex"] for each in found["AlgorithmSpecification"]["MetricDefinitions"]
    }


def chart_values(text, by_name):
    """Name -> the numbers in the first parentheses, line by line."""
    return {
        name: [float(found[1]) for line in text.split("\n") for found in re.finditer(regex, line)]
        for name, regex in by_name.items()
    }

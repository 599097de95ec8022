"""The values that AWS charts from the output of a job, by the regular expressions of a request."""

import json
import re

LOSS, SPEED, ACCURACY = "train:loss", "train:images_per_second", "validation:accuracy"


def metric_regexes(template):
    """Return {metric name: regular expression} of the file of a request for a training job."""
    request = json.loads(template.read_text(encoding="utf-8"))
    return {metric["Name"]: metric["Regex"] for metric in request["AlgorithmSpecification"]["MetricDefinitions"]}


def chart_values(text, regexes):
    """Return {metric name: numbers}, read by the first groups of the regular expressions."""
    return {
        name: [float(match[1]) for line in text.split("\n") for match in re.finditer(regex, line)]
        for name, regex in regexes.items()
    }

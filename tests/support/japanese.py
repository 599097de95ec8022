"""What may stand in a Japanese text, by labs/glossary.md."""

import re

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.parallel.pipeline.schedule import SCHEDULES

# Names of code, of keys, and of a book with a section of it.
NAMES = {*ALGORITHMS, *SCHEDULES, "GPipe", "allreduce", "log", "JavaScript", "Home", "End"}
NAMES |= {"Dive", "into", "Deep", "Learning", "Training", "on", "Multiple", "GPUs"}
JAPANESE = "[\u3041-\u30ff\u4e00-\u9fff]"
FAULTS = [
    "[\uff01-\uff5e\u3000]",  # full-width digits, letters, brackets, colons and spaces
    f"{JAPANESE}[0-9A-Za-z]|[0-9A-Za-z]{JAPANESE}",  # no space between the scripts
    f"{JAPANESE} +{JAPANESE}|[、。] | [、。]",  # a space where none belongs
    rf"{JAPANESE}\(|\){JAPANESE}|\( | \)",  # brackets
]


def english_words(text):
    """The words of three letters and more that are no names."""
    return set(re.findall("[A-Za-z_]{3,}", text)) - NAMES


def faults_of_writing(text):
    """What breaks the glossary's rules of writing; the text stands without its HTML and with its
    blanks filled in.
    """
    return [found[0] for pattern in FAULTS for found in re.finditer(pattern, text)]

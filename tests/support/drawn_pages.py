"""What a drawn page shows and says, and how well its colours can be told apart."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES
from support.legible import luminance


def flatten_texts(words, path=()):
    """{path of the word: text} for all words of a language."""
    if isinstance(words, str):
        return {path: words}
    named = words._asdict() if hasattr(words, "_asdict") else words
    named = named if isinstance(named, dict) else dict(enumerate(named))
    return {
        place: text
        for name, inner in named.items()
        for place, text in flatten_texts(inner, (*path, name)).items()
    }


def format_fields(text):
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


class PageTexts(HTMLParser):
    """What a page shows and says before its script runs, one text after the other."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.lang, self._inside = [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.texts += [
            value for name, value in attrs if name in ("aria-label", "title", "alt", "placeholder")
        ]
        self.lang = dict(attrs).get("lang", self.lang)

    def handle_data(self, data):
        if self._inside not in ("style", "script"):
            self.texts += [" ".join(data.split())] if data.strip() else []

    def handle_endtag(self, tag):
        self._inside = ""


def string_values(data):
    """All texts in what the script is given, without the names of what is there."""
    if isinstance(data, dict):
        return [text for inner in data.values() for text in string_values(inner)]
    inner = data if isinstance(data, list) else []
    return (
        [data]
        if isinstance(data, str)
        else [text for each in inner for text in string_values(each)]
    )


def embedded_data(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    )


def theme_colors(*packages):
    """{name: colour} of the styles of these packages together: in the light, in the dark."""
    merged = [{}, {}]
    for package in packages:
        [path] = (Path(package.__file__).parent / "template").glob("*.css")
        blocks = re.findall(r":root {(.*?)}", path.read_text(encoding="utf-8"), re.S)
        assert len(blocks) == 2
        for theme, block in zip(merged, blocks):
            theme.update(re.findall(r"--([\w-]+): (#\w{6})", block))
    return merged


def contrast_ratio(one, two):
    """WCAG's ratio of two colours, #rrggbb."""
    red_green_blue = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (one, two)]
    dark, light = sorted(map(luminance, red_green_blue))
    return (light + 0.05) / (dark + 0.05)


def check_self_contained(html):
    assert len(html.encode()) < 300_000
    assert (
        "content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:;"
    ) in html
    assert set(re.findall(r"https?://[^\s\"']+", html)) == {"http://www.w3.org/2000/svg"}


# Names of code, of keys, and of a book with a section of it.
UNTRANSLATED_WORDS = {
    *ALGORITHMS,
    *SCHEDULES,
    "GPipe",
    "allreduce",
    "log",
    "JavaScript",
    "Home",
    "End",
}
UNTRANSLATED_WORDS |= {"Dive", "into", "Deep", "Learning", "Training", "on", "Multiple", "GPUs"}
JAPANESE = "[\u3041-\u30ff\u4e00-\u9fff]"
TYPOGRAPHY_FAULTS = [
    "[\uff01-\uff5e\u3000]",  # full-width digits, letters, brackets, colons and spaces
    f"{JAPANESE}[0-9A-Za-z]|[0-9A-Za-z]{JAPANESE}",  # no space between the scripts
    f"{JAPANESE} +{JAPANESE}|[、。] | [、。]",  # a space where none belongs
    rf"{JAPANESE}\(|\){JAPANESE}|\( | \)",  # brackets
]


def english_words(text):
    """The words of three letters and more that are no names."""
    return set(re.findall("[A-Za-z_]{3,}", text)) - UNTRANSLATED_WORDS


def find_typography_faults(text):
    """What breaks the glossary's rules of writing; the text stands without its HTML and with its
    blanks filled in.
    """
    return [found[0] for pattern in TYPOGRAPHY_FAULTS for found in re.finditer(pattern, text)]

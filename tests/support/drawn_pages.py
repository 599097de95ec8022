"""What a drawn page shows and says, and how well its colours can be told apart."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter


def flat(words, path=()):
    """{path of the word: text} for all words of a language."""
    if isinstance(words, str):
        return {path: words}
    named = (
        words
        if isinstance(words, dict)
        else words._asdict()
        if hasattr(words, "_asdict")
        else dict(enumerate(words))
    )
    return {
        place: text
        for name, inner in named.items()
        for place, text in flat(inner, (*path, name)).items()
    }


def blanks(text):
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


class Texts(HTMLParser):
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


def strings(data):
    """All texts in what the script is given, without the names of what is there."""
    if isinstance(data, dict):
        return [text for inner in data.values() for text in strings(inner)]
    return (
        [data]
        if isinstance(data, str)
        else [text for inner in data for text in strings(inner)]
        if isinstance(data, list)
        else []
    )


def embedded(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    )


def themes(*packages):
    """{name: colour} of the styles of these packages together: in the light, in the dark."""
    merged = [{}, {}]
    for package in packages:
        [path] = (Path(package.__file__).parent / "template").glob("*.css")
        blocks = re.findall(r":root {(.*?)}", path.read_text(encoding="utf-8"), re.S)
        assert len(blocks) == 2
        for theme, block in zip(merged, blocks):
            theme.update(re.findall(r"--([\w-]+): (#\w{6})", block))
    return merged


def luminance(colour):
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    dark, light = sorted([luminance(one), luminance(two)])
    return (light + 0.05) / (dark + 0.05)


def is_one_small_file_that_loads_nothing(html):
    assert len(html.encode()) < 300_000
    assert (
        "content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:;"
    ) in html
    assert set(re.findall(r"https?://[^\s\"']+", html)) == {"http://www.w3.org/2000/svg"}

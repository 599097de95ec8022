"""Fake folders of runs and comparisons, and a parser of the pages about them."""

import json
from html.parser import HTMLParser

# A real run that takes little time.
QUICK_SETTINGS = {"devices": "cpu", "threads": 1, "model": "mlp", "epochs": 1}
SETTINGS = {"devices": ["cpu(0)", "cpu(1)"], "model": "lenet", "epochs": 3, "kvstore": "device", "learning_rate": 0.1}


def make_metrics(epochs=3, steps=4, lr=0.1):
    lines = []
    for epoch in range(1, epochs + 1):
        base = {"epoch": epoch, "loss": 2.0 / epoch}
        lines += [
            {"kind": "step", **base, "step": (epoch - 1) * steps + step, "lr": lr / epoch}
            for step in range(1, steps + 1)
        ]
        lines.append(
            {"kind": "epoch", **base, "step": epoch * steps, "images": 100, "seconds": 0.5 * epoch,
             "val_accuracy": [0.5, 0.9, 0.8][epoch - 1], "val_loss": 1.0 / epoch}
        )  # fmt: skip
    return lines


def make_run(folder, metrics=None, **settings):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"gluonlab": "0.1.0", "settings": {**SETTINGS, **settings}, "config": {}})
    )
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in (make_metrics() if metrics is None else metrics))
    )
    return folder


def make_comparison(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"config": {}, "compare": [1, 2]}))
    return folder


class ReportParser(HTMLParser):
    """A parser that collects tables by id and fetched URLs, and checks that tags are closed."""

    VOID = {"meta", "link", "br", "img", "input"}

    def __init__(self, text):
        super().__init__()
        self.tables, self.fetched, self.open_tags, self.rows = {}, [], [], None
        self.feed(text)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.fetched += [
            values[name]
            for name in ("src", "href", "xlink:href")
            if name in values and not values[name].startswith("#")
        ]
        if tag not in self.VOID:
            self.open_tags.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(values.get("id", ""), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open_tags.pop()

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open_tags):
            self.rows[-1][-1] += data

"""docs/sources.md: its sections and exercises exist, and no lab is left out."""

import re
from typing import NamedTuple

import pytest
from the_labs import REPOSITORY, SERIES

from gluonlab_labs.outline import EXERCISE, HEADING, prose_lines

PAGE = REPOSITORY / "docs" / "sources.md"
KINDS = {"concept", "claim", "figure", "code", "result", "exercise", "question"}
TARGET = re.compile(r'(?P<lab>\d\d), "(?P<title>[^"]+)"(?:, exercises? (?P<ids>\d\d-\d+(?:, \d\d-\d+)*))?')
NOT_TAKEN_UP = re.compile(r"not taken up: .{10,}")


class Row(NamedTuple):
    source: str
    kind: str
    said: str
    where: str


def read_rows(text):
    """Return the rows of all tables, without heads and rules."""
    rows, source = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            source = line[3:]
        elif line.startswith("| ") and not line.startswith("| |"):
            rows.append(Row(source, *(cell.strip() for cell in line.strip("| ").split(" | "))))
    return rows


def find_exercises(lab):
    """Return {title of a section or of a part of it: the exercises in it}."""
    exercises, open_titles = {}, {}  # open_titles: level of a heading -> its title
    for heading in (HEADING.fullmatch(line) for text in lab.text_pairs() for _, line in prose_lines(text.blocks["en"])):
        exercise = EXERCISE.fullmatch(heading["title"]) if heading else None
        if exercise:
            for title in open_titles.values():
                exercises[title].add(exercise["id"])
        elif heading:
            level = len(heading["marks"])
            open_titles = {other: title for other, title in open_titles.items() if other < level}
            open_titles[level] = heading["title"]
            exercises.setdefault(heading["title"], set())
    return exercises


TITLES = {lab.number: find_exercises(lab) for lab in SERIES.labs}
ROWS = read_rows(PAGE.read_text(encoding="utf-8"))


def list_faults(where):
    """Return the faults in the last cell of a row."""
    if NOT_TAKEN_UP.fullmatch(where):
        return []
    faults = []
    for target, part in ((TARGET.fullmatch(part), part) for part in where.split(" · ")):
        if not target:
            faults.append(f"{part!r} is neither a section nor a reason")
        elif target["title"] not in TITLES.get(target["lab"], {}):
            faults.append(f"lab {target['lab']} has no section {target['title']!r}")
        else:
            ids = target["ids"].split(", ") if target["ids"] else []
            missing = [id for id in ids if id not in TITLES[target["lab"]][target["title"]]]
            faults += [f"{id} is not in {target['title']!r}" for id in missing]
    return faults


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.said[:40])
def test_a_row_leads_to_sections_and_exercises_that_exist(row):
    assert row.kind in KINDS and row.said
    assert list_faults(row.where) == []


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("", "neither"),
        ("01", "neither"),
        ("not taken up:", "neither"),
        ('01, "Devices" and more', "neither"),
        ('01, "Devises"', "no section"),
        ('77, "Devices"', "no section"),
        ('01, "Devices", exercise 01-99', "01-99"),
        ('01, "Devices", exercise 01-2', "01-2"),  # of another section
        ('01, "Devices" · 01, "Nothing"', "no section"),
    ],
)
def test_a_row_that_leads_nowhere_is_found(where, fault):
    [message] = list_faults(where)
    assert fault in message


def test_rows_of_all_five_sources_were_read():
    """As many as lines of tables, of which each table has two at its head."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert len(ROWS) == len(lines) - 2 * 5
    assert len({row.source for row in ROWS}) == 5
    assert len(set(ROWS)) == len(ROWS)


def test_the_chapters_four_exercises_have_exercises():
    chapter = [row for row in ROWS if row.source == "Dive into Deep Learning" and row.kind == "exercise"]
    assert [row.said.split(":")[0] for row in chapter] == ["1", "2", "3", "4"]
    assert all("exercise" in row.where for row in chapter)


def test_every_lab_has_a_row():
    named = {target["lab"] for row in ROWS for target in TARGET.finditer(row.where)}
    assert named == {lab.number for lab in SERIES.labs}

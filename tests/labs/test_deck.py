"""A deck's source: what becomes of it, and every fault of it in one line."""

import copy
import re

import made_up_lab
import pytest
import the_labs  # noqa: F401  puts labs/ where gluonlab_labs can be imported from
from made_up_lab import CHECKERS

from gluonlab.errors import NotebookError
from gluonlab_labs.build import LabFolders, make_files, read_labs
from gluonlab_labs.faults import Faults, SourceError
from gluonlab_labs.notebook import make_notebook
from gluonlab_labs.players import player_page
from gluonlab_labs.slides import lab_deck, render_deck

DECK = """+++ {notes: goals}
:::{en}
## What for?
- One `name`, see {lab:02}.

> Ask them.
:::
:::{ja}
## 何のため?
- `name` が 1 つ、{lab:02} を参照。

> 聞いてください。
:::

+++ {ask: true}
:::{en}
## Which one?
:::
:::{ja}
## どれ?
:::

+++ {code: {cell: import gluonlab, from: import check}, output: import gluonlab}
:::{en}
## Imported
:::
:::{ja}
## インポート
:::

+++ {figure: dot}
:::{en}
## A picture of it
:::
:::{ja}
## その図
:::

+++ {exercise: 01-1}
:::{en}
- Add.
:::
:::{ja}
- 足す。
:::
"""


def write_labs(root, deck=DECK):
    place = LabFolders(made_up_lab.write(root))
    place.slides.mkdir(parents=True)
    (place.slides / "01-add.md").write_text(deck, encoding="utf-8")
    return place


def render_pages(place, printed="one\ntwo\nthree\n"):
    """{language: page} of the made-up lab, whose first cell has printed something."""
    series = read_labs(place, CHECKERS)
    lab = series.labs[0]
    made = {}
    for language in ("en", "ja"):
        executed = make_notebook(lab, language, series, Faults(lab.path))
        first = next(cell for cell in executed.cells if cell.cell_type == "code")
        stream = {"output_type": "stream", "name": "stdout", "text": printed}
        first.outputs = [type(first)(copy.deepcopy(stream))]
        made[language] = render_deck(series, lab, lab_deck(lab, series, place), executed, place)
    return made


def find_slides(text):
    return re.findall(r'<section class="slide".*?</section>', text, re.S)


def read_notes(slide):
    return re.search(r"<aside[^>]*>\n(.*?)</aside>", slide, re.S)[1]


def list_faults(root, deck):
    with pytest.raises(SourceError) as caught:
        read_labs(write_labs(root, deck), CHECKERS)
    return str(caught.value).splitlines()


def test_a_slide_shows_its_text_and_what_it_names_of_the_lab(tmp_path):
    made = render_pages(write_labs(tmp_path))
    english, japanese = find_slides(made["en"]), find_slides(made["ja"])
    assert len(english) == len(japanese) == 6  # with the lab's own title
    assert "<h1>Adding</h1>" in english[0]
    assert "<h2>What for?</h2>" in english[1]
    assert '<a href="02-more.html">Lab 02</a>' in english[1]
    assert "Your guess" in english[2]
    assert "予想してみましょう" in japanese[2]
    assert "setup" in english[3]  # of the line that is asked for,
    assert "gluonlab</span>\n" not in english[3]  # and not the one before
    assert "one\ntwo\nthree" in english[3]
    assert "the <code>dot</code>" in english[4].lower()
    assert 'aria-label="A dot"' in english[4]
    assert 'aria-label="点"' in japanese[4]
    assert "<h2>Exercise 01-1: Add</h2>" in english[5]
    assert "<h2>演習 01-1: 足す</h2>" in japanese[5]
    assert "NotImplementedError" in english[5]


def test_notes_are_the_cues_and_the_lab_s_words_without_links_to_its_places(tmp_path):
    made = render_pages(write_labs(tmp_path))
    english, japanese = map(find_slides, made.values())
    said = read_notes(english[1])
    assert said.index("Ask them.") < said.index("a reference")
    assert "See Section 2, Exercise 01-1, Figure 1 and" in said
    assert "聞いてください" in read_notes(japanese[1])
    assert "Ask them" not in re.sub(r"<aside.*?</aside>", "", english[1], flags=re.S)
    # the guess has what comes before the cell whose output follows, the lab's first text
    assert "a reference" in read_notes(english[2])
    assert "a reference" in read_notes(english[0])


def test_some_lines_of_an_output(tmp_path):
    some = DECK.replace("output: import", "output: {cell: import").replace(
        "gluonlab}\n", "gluonlab, from: two, to: two}}\n"
    )
    output = re.search(r'<pre class="output.*?</pre>', render_pages(write_labs(tmp_path, some))["en"], re.S)[0]
    assert "two" in output
    assert "one" not in output
    assert "three" not in output


@pytest.mark.parametrize(
    ("output", "printed", "message"),
    [
        ("{cell: import gluonlab, from: ten}", "one\n", "slide 4 of lab 01: no line with 'ten'"),
        ("import gluonlab", "", "slide 4 of lab 01: its cell .* has no output"),
    ],
)
def test_an_output_without_anything_to_show_is_an_error(output, printed, message, tmp_path):
    deck = DECK.replace("output: import gluonlab", f"output: {output}")
    with pytest.raises(NotebookError, match=message):
        render_pages(write_labs(tmp_path, deck), printed)


def test_notebooks_do_not_have_the_slides(tmp_path):
    without = LabFolders(made_up_lab.write(tmp_path / "without"))
    with_deck = write_labs(tmp_path / "with")
    assert make_files(read_labs(without, CHECKERS), without) == make_files(read_labs(with_deck, CHECKERS), with_deck)


def test_a_lab_without_a_deck_has_a_slide_for_each_section_figure_and_exercise(tmp_path):
    place = LabFolders(made_up_lab.write(tmp_path))
    english, japanese = map(find_slides, render_pages(place).values())
    titles = [re.search(r"<h[12]>(.*?)</h", slide)[1] for slide in english]
    assert titles == ["Adding", "Goals", "Goals", "Work", "Exercise 01-1: Add"]
    assert "<svg" in english[2]
    assert len(japanese) == 5


@pytest.mark.parametrize(
    ("old", "new", "line", "fault"),
    [
        ("figure: dot", "figure: dott", 31, "unknown figure 'dott'"),
        ("exercise: 01-1", "exercise: 01-2", 39, "unknown exercise '01-2'"),
        ("notes: goals", "notes: goal", 1, "unknown section 'goal'"),
        ("ask: true", "aks: true", 15, "unknown option of a slide 'aks'"),
        ("figure: dot", "player: rong 4", 31, "unknown algorithm 'rong'"),
        ("figure: dot", "player: ring", 31, "player: ring: write ring 4"),
        ("output: import gluonlab", "output: import x", 23, "no cell of lab 01 with 'import x'"),
        ("from: import check", "from: import y", 23, "no line with 'import y'"),
        ("code: {cell: import gluonlab, ", "code: {sell: a, ", 23, "is not a valid part of a cell"),
        ("figure: dot", "figure: dot, player: ring 4", 31, "shows figure and player: choose one of them"),
        ("+++ {figure: dot}", "+++ figure", 31, "is not valid (figure): write +++ {figure: name}"),
        ("- Add.", "- Add.\n- Two.", 39, "2 lines in English, 1 in Japanese"),
        ("## Which one?\n", "", 15, "a slide without a title in :::{en}"),
        ("## Imported", "## Imported\n### Twice", 26, "write one heading per slide"),
        ("- One `name`", "- One", 10, ":::{en} does not contain `name`"),
        ("{lab:02}.\n", "{lab:03}.\n", 4, "unknown lab '03'"),
    ],
)
def test_a_fault_is_one_line(old, new, line, fault, tmp_path):
    assert old in DECK
    found = list_faults(tmp_path, DECK.replace(old, new, 1))
    assert any(re.search(rf"01-add\.md:{line}: .*{re.escape(fault)}", one) for one in found), found


SIX_POINTS = DECK.replace("- Add.", "- a\n" * 6).replace("- 足す。", "- あ\n" * 6)
SAME_FIGURE = DECK + "\n" + DECK[DECK.index("+++ {figure") : DECK.index("+++ {exercise")]


@pytest.mark.parametrize(
    ("deck", "faults"),
    [
        (SIX_POINTS, [r":39: has 6 lines: write at most 5$"]),
        (SAME_FIGURE, [r":31: figure dot is on 2 slides", r":47: figure dot is on 2 slides"]),
        (DECK.replace("+++ {ask: true}\n", ""), [r":1: a slide with 2 pairs of blocks"]),
        ("Hello\n" + DECK, [r":1: 'Hello' comes before the first \+\+\+: start the deck with \+\+\+$"]),
    ],
)
def test_a_fault_of_the_whole_deck_or_slide_is_a_line(deck, faults, tmp_path):
    lines = list_faults(tmp_path, deck)
    assert len(lines) == len(faults) and all(map(re.search, faults, lines)), lines


def test_a_deck_without_a_lab_is_a_fault(tmp_path):
    place = write_labs(tmp_path)
    (place.slides / "01-add.md").rename(place.slides / "03-add.md")
    with pytest.raises(SourceError, match=r"03-add\.md:1: there is no lab"):
        read_labs(place, CHECKERS)


def test_pages_that_play_are_in_both_languages_and_lead_back():
    for asked in ("ring 4", "1f1b 4 8"):
        english, japanese = player_page(asked, "en"), player_page(asked, "ja")
        assert '<html lang="en">' in english and '<html lang="ja">' in japanese
        assert english.count("parent.postMessage") == 1 and english.rstrip().endswith("</html>")

"""labs/build.py: what a source becomes, and every fault of a source in one line."""

import json
import re

import made_up_lab
import nbformat
import pytest
import the_labs  # noqa: F401  puts labs/ where gluonlab_labs can be imported from
from made_up_lab import CHECKERS, FIGURE, SOURCE

from gluonlab_labs.build import LabFolders, make_files, read_labs
from gluonlab_labs.command import main
from gluonlab_labs.faults import SourceError
from gluonlab_labs.figures import prefix_svg_ids, svg_in_language


def build_files(folder, **changes):
    """Return {name: content} of the files that the made-up lab becomes."""
    place = LabFolders(made_up_lab.write(folder, **changes))
    return {str(path): text for path, text in make_files(read_labs(place, CHECKERS), place).items()}


@pytest.fixture
def made(tmp_path):
    return build_files(tmp_path)


def read_texts(files, name):
    """Return the Markdown of a notebook."""
    cells = nbformat.reads(files[name], 4).cells
    return "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")


def test_a_source_becomes_a_notebook_and_its_pictures_in_each_language(made):
    notebooks = [f"{language}/{name}.ipynb" for language in ("en", "ja") for name in ("01-add", "02-more")]
    assert sorted(made) == sorted([*notebooks, "en/figures/dot.svg", "ja/figures/dot.svg"])
    for name in notebooks:
        nbformat.validate(nbformat.reads(made[name], 4))


def test_code_is_the_same_in_both_languages_down_to_the_ids_of_its_cells(made):
    english, japanese = (json.loads(made[f"{language}/01-add.ipynb"])["cells"] for language in ("en", "ja"))
    assert [cell["id"] for cell in english] == [cell["id"] for cell in japanese]
    assert len({cell["id"] for cell in english}) == len(english)
    code = [[cell for cell in cells if cell["cell_type"] == "code"] for cells in (english, japanese)]
    assert code[0] == code[1]
    assert len(code[0]) == 3


def test_sections_figures_and_references_are_numbered(made):
    english, japanese = read_texts(made, "en/01-add.ipynb"), read_texts(made, "ja/01-add.ipynb")
    assert "# Lab 01: Adding" in english
    assert '## <a id="work"></a>2. Work' in english
    assert '## <a id="work"></a>2. 作業' in japanese
    assert (
        "See [Section 2](#work), [Exercise 01-1](#exercise-01-1), [Figure 1](#fig-dot) and [Lab 02](02-more.ipynb)"
    ) in english
    assert ("[2 節](#work)、[演習 01-1](#exercise-01-1)、[図 1](#fig-dot)、[ラボ 02](02-more.ipynb) を参照") in japanese
    assert "`{sec:raw}`" in english
    assert "**Figure 1** The `dot`" in english
    assert "**図 1** `dot` です" in japanese
    assert "[Exercise 01-1](01-add.ipynb#exercise-01-1)" in read_texts(made, "en/02-more.ipynb")


def test_japanese_lines_are_joined_without_a_space_and_nothing_else_is(tmp_path):
    paragraphs = "一行目は、\n二行目に続き、\n2 行ではありません。\n\n段落。\n\n"
    more = paragraphs + "- 項目は\n  続きます。\n- 次。\n\n| 表 |\n|---|\n| 行 |\n| 行 |\n\n"
    wrapped = SOURCE.replace("## 作業 {#work}\n", f"## 作業 {{#work}}\n{more}")
    text = read_texts(build_files(tmp_path, source=wrapped), "ja/01-add.ipynb")
    for kept in (
        "2. 作業\n一行目は、二行目に続き、\n2 行ではありません。\n\n段落。",
        "- 項目は続きます。\n- 次。",
        "| 表 |\n|---|\n| 行 |\n| 行 |\n",
    ):
        assert kept in text


def test_solutions_take_the_place_of_stubs(tmp_path):
    place = LabFolders(made_up_lab.write(tmp_path))
    solved = make_files(read_labs(place, CHECKERS), place, solutions=True)
    text = next(text for path, text in solved.items() if path.name == "01-add.ipynb")
    assert "return a + b" in text
    assert "NotImplementedError" not in text


def test_a_cell_that_is_added_keeps_the_ids_of_the_others(tmp_path, made):
    longer = build_files(tmp_path / "more", source=SOURCE + "\n```{code-cell} ipython3\nprint(1)\n```\n")
    before, after = ([cell["id"] for cell in json.loads(files["en/01-add.ipynb"])["cells"]] for files in (made, longer))
    assert after[: len(before)] == before and len(after) == len(before) + 1


# --- faults


# place, message, and the text of the source that is replaced
SOURCE_FAULTS = [
    ("01-add.md:1:", "has no title in both languages", ', ja: "足し算"', ""),
    ("01-add.md:1:", "no learning time: add minutes", "minutes: 5", "minutes: soon"),
    ("01-add.md:1:", "no list of required labs: add needs", "needs: []", ""),
    ("01-add.md:1:", "needs: 07 is not a lab: choose from 01, 02", "needs: []", 'needs: ["07"]'),
    ("01-add.md:6:", "followed by :::{en}: blocks come in pairs", ":::{ja}\n## ねらい", ":::{en}\n## ねらい"),
    ("01-add.md:6:", "is not a language: write :::{en} or :::{ja}", ":::{en}", ":::{de}"),
    ("01-add.md:16:", "'stray' is outside of any block", ":::\n\n```{code", ":::\nstray\n\n```{code"),
    ("01-add.md:11:", "is not closed: write ::: below it", "コード。\n:::\n", "コード。\n"),
    ("01-add.md:12:", "headings differ: '## goals' in English, '### goals' in Japanese", "## ねらい", "### ねらい"),
    ("01-add.md:8:", ":::{ja} does not contain `name`", "- `name` が", "- 名前が"),
    ("01-add.md:8:", ":::{ja} does not contain $x^2$", "、$x^2$、", "、"),
    ("01-add.md:8:", ":::{ja} does not contain https://example.org", "、[文献](https://example.org)", ""),
    ("01-add.md:9:", ":::{ja} does not contain {lab:02}", "、{lab:02} を", "を"),
    ("01-add.md:9:", "unknown section 'wrok': choose goals, work (did you mean 'work'?)", "{sec:work}", "{sec:wrok}"),
    ("01-add.md:9:", "unknown lab '09'", "{lab:02}", "{lab:09}"),
    ("01-add.md:9:", "unknown exercise '01-9'", "{ex:01-1}", "{ex:01-9}"),
    ("01-add.md:9:", "unknown figure 'dots'", "{fig:dot}", "{fig:dots}"),
    ("01-add.md:9:", "unknown cross-reference 'sect': choose ex, fig, lab, sec", "{sec:work}", "{sect:work}"),
    ("01-add.md:23:", "has no alternative text", "![A dot]", "![]"),
    ("01-add.md:23:", "has no caption", ' "The `dot`"', ""),
    ("01-add.md:23:", "name a figure figures/NAME.svg", "figures/dot.svg", "dot.png"),
    ("01-add.md:7:", "a heading of level 1 is not allowed", "## Goals", "# Goals"),
    ("01-add.md:38:", "fences differ", "list\n```\n### 演習", "grade\n```\n### 演習"),
    ("01-add.md:44:", "the code cell after exercise 01-1 is print(add)", 'check("01-1", add)', "print(add)"),
    ("01-add.md:44:", "is not a stub", "raise NotImplementedError", "return a + b"),
    ("01-add.md:44:", "is in lab 01: tag it exercise-01-N", "[exercise-01-1]", "[exercise-02-1]"),
    ("01-add.md:1:", "has a heading but no stub", ":tags: [exercise-01-1]\n", ""),
]
FAULTS = [
    ("01-add.md:23:", "figures/dot.svg is missing", {"figure": None}),
    ("01-add.md:44:", "exercise 01-1 does not have a checker", {"checkers": set()}),
    ("01-add.md:44:", "the solution of exercise 01-1 is missing: write solutions/01-1.py", {"solution": None}),
    ("01-add.md:44:", "does not define add", {"solution": "def plus(a, b):\n    return a + b\n"}),
    ("01-add.md:44:", "is not valid Python", {"solution": "def add(a, b)\n"}),
    (
        "01-add.md:44:",
        "exercise 01-1 has no heading",
        {"source": SOURCE.replace("### Exercise 01-1: Add", "### Add").replace("### 演習 01-1: 足す", "### 足す")},
    ),
    ("dot.svg:1:", "is not a picture of width 720", {"figure": FIGURE.replace("720", "700")}),
    ("dot.svg:1:", 'has no role="img"', {"figure": FIGURE.replace(' role="img"', "")}),
    ("dot.svg:1:", "has a <script>", {"figure": FIGURE.replace("</svg>", "<script/></svg>")}),
    (
        "dot.svg:1:",
        "refer only to parts of the same figure",
        {"figure": FIGURE.replace("<path d=", '<path href="https://x.org" d=')},
    ),
    ("dot.svg:1:", "write each text in both languages", {"figure": FIGURE.replace(' lang="ja"', "")}),
    ("dot.svg:1:", "shows '点' in both languages", {"figure": FIGURE.replace(' lang="ja"', "")}),
    ("dot.svg:", "is not valid XML", {"figure": FIGURE.replace("</svg>", "")}),
    *((place, message, {"source": SOURCE.replace(old, new, 1)}) for place, message, old, new in SOURCE_FAULTS),
]


@pytest.mark.parametrize(("place", "message", "changes"), FAULTS, ids=[message for _, message, _ in FAULTS])
def test_a_fault_is_one_line_with_its_place(place, message, changes, tmp_path):
    checkers = changes.pop("checkers", CHECKERS)
    assert all(text != made_up_lab.SOURCE for text in changes.values())
    with pytest.raises(SourceError) as raised:
        read_labs(LabFolders(made_up_lab.write(tmp_path, **changes)), checkers)
    lines = str(raised.value).splitlines()
    assert any(place in line and message in line for line in lines), lines


def test_two_labs_of_one_number_and_a_figure_that_stands_nowhere_are_found(tmp_path):
    root = made_up_lab.write(tmp_path)
    (root / "source" / "01-again.md").write_text(SOURCE, encoding="utf-8")
    (root / "source" / "figures" / "lonely.svg").write_text(FIGURE, encoding="utf-8")
    with pytest.raises(SourceError) as raised:
        read_labs(LabFolders(root), CHECKERS)
    assert "also has the number 01" in str(raised.value)
    assert "lonely.svg:1: is not used by any lab" in str(raised.value)


# --- pictures


def test_a_picture_speaks_one_language(tmp_path):
    path = tmp_path / "dot.svg"
    path.write_text(FIGURE, encoding="utf-8")
    english, japanese = svg_in_language(path, "en"), svg_in_language(path, "ja")
    assert ("dot" in english, "点" in english) == (True, False)
    assert ("dot" in japanese, "点" in japanese) == (False, True)
    assert english.startswith("<svg")


def test_ids_of_a_picture_are_its_own_and_still_found():
    svg = prefix_svg_ids(FIGURE, "in-dot-")
    assert 'id="in-dot-head"' in svg
    assert "url(#in-dot-head)" in svg
    assert not re.search(r'id="head"|\(#head\)', svg)


# --- the command


@pytest.fixture
def build(ended, tmp_path, monkeypatch):
    """``build(*options)`` with the sources of the made-up lab."""
    from gluonlab.exercises.exercise_registry import EXERCISES, exercise

    monkeypatch.setattr("gluonlab_labs.command.all_exercises", lambda: [EXERCISES["01-1"]])
    monkeypatch.setattr("gluonlab_labs.command.all_guesses", list)
    monkeypatch.setitem(EXERCISES, "01-1", None)
    exercise("01-1")(lambda answer: None)
    root = made_up_lab.write(tmp_path / "labs")
    return lambda *options: ended(main, "--source", str(root), *options)


def test_what_is_built_is_what_check_wants(build, tmp_path):
    status, _, error = build("--check")
    assert status == 1
    assert "en/01-add.ipynb" in error
    assert "run make labs" in error
    assert build()[:2] == (0, f"wrote 4 notebooks and 2 figures to {tmp_path / 'labs'}\n")
    assert build("--check")[0] == 0
    (tmp_path / "labs" / "en" / "07-old.ipynb").write_text("{}")
    assert "07-old.ipynb" in build("--check")[2]
    assert build()[0] == 0
    assert build("--check")[0] == 0  # what is left over has been removed


def test_a_notebook_that_somebody_has_worked_in_is_not_written_over(build, tmp_path):
    build()
    path = tmp_path / "labs" / "en" / "01-add.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="mine")]
    nbformat.write(notebook, path)
    status, _, error = build()
    assert status == 2
    assert f"{path} would lose somebody's work" in error
    assert "mine" in path.read_text()
    assert build("--force")[0] == 0
    assert "mine" not in path.read_text()


def test_slides_of_labs_that_show_no_outputs_need_no_kernel(build, tmp_path):
    root = tmp_path / "slides"
    status, printed, _ = build("slides", "--out", str(root))
    assert (status, printed) == (0, f"wrote 2 decks in 2 languages: open {root / 'index.html'}\n")
    pages = [path.relative_to(root).as_posix() for path in root.rglob("*.html")]
    names = [f"{language}/{name}.html" for language in ("en", "ja") for name in ("01-add", "02-more")]
    assert sorted(pages) == sorted(["index.html", *names])


def test_mistakes_of_the_command_line_are_one_line(build):
    assert build("--with-solutions") == (
        2,
        "",
        (
            "error: --with-solutions needs --out DIR: do not write solutions into the folder of the students' "
            "notebooks\n"
        ),
    )
    assert build("handout")[2] == (
        "error: unknown 'handout': use handouts for HTML pages, slides for lectures, browser for a page that runs "
        "exercises, or no word for notebooks\n"
    )
    assert build("slides", "--with-solutions", "--out", "x")[2] == (
        "error: --with-solutions: slides do not contain solutions: remove it, or build handouts\n"
    )
    status, _, error = build("--source", "nowhere")
    assert (status, error) == (2, "error: --source nowhere: cannot find the folder nowhere/source\n")


def test_faults_end_the_command_with_a_line_each(build, tmp_path):
    path = tmp_path / "labs" / "source" / "01-add.md"
    path.write_text(SOURCE.replace("minutes: 5\nneeds: []", ""), encoding="utf-8")
    status, _, error = build()
    assert status == 2
    assert error.count("\n") == 3
    assert error.endswith("error: found 2 errors in the sources (see above) and wrote no files\n")
    assert not (tmp_path / "labs" / "en").exists()

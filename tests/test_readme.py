"""Every link of README and the other documents leads to an existing target."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
OTHERS = "README README.ja CONTRIBUTING CHANGELOG SECURITY sagemaker/README labs/AUTHORING labs/glossary"
PAGES = [*(f"{name}.md" for name in OTHERS.split()), *DOCS]
LINK = re.compile(r"\]\((?!https?://)([^)\s]*)\)")


def page_anchors(page):
    """Return the anchors of a page, as GitHub makes them from headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def find_dead_links(page):
    """Return the links of a page whose target does not exist."""
    links = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        if not other.exists() or (anchor and anchor not in page_anchors(other)):
            links.append(target)
    return links


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    assert find_dead_links(ROOT / name) == []


@pytest.mark.parametrize("bad", ["[x](nowhere.md)", "[x](#no-such-heading)", "![x](docs/pictures/none.png)"])
def test_a_link_that_leads_nowhere_is_found(tmp_path, bad):
    page = tmp_path / "page.md"
    page.write_text(f"# A heading\n\n[x](#a-heading) {bad}\n", encoding="utf-8")
    assert len(find_dead_links(page)) == 1


def test_both_readmes_link_to_the_same_pages_and_pictures():
    first, second = (
        {
            link
            for link in LINK.findall((ROOT / name).read_text(encoding="utf-8"))
            if link.startswith(("labs/", "docs/"))
        }
        for name in ("README.md", "README.ja.md")
    )
    assert first == second


def test_the_page_of_the_labs_links_to_every_notebook():
    links = LINK.findall((ROOT / "docs" / "labs.md").read_text(encoding="utf-8"))
    labs = {f"../{path.relative_to(ROOT)}" for path in (ROOT / "labs").glob("??/*.ipynb")}
    assert {link for link in links if link.endswith(".ipynb")} == labs


def test_the_command_that_never_changes_is_in_the_readme_once():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("python -m gluonlab.run --gpus 2") == 1

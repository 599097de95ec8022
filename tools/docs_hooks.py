"""MkDocs hooks that add pages and figures from outside docs/ and rewrite links that leave docs/.

A link out of docs/ leads to the same page of the site if the site has it. Otherwise the link leads
to GLUONLAB_URL, the repository on the web. Without GLUONLAB_URL only the text of the link remains.
"""

import dataclasses
import functools
import os
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this gluonlab
from gluonlab.config import TrainConfig  # noqa: E402

TOP = {  # page of the site: its source outside docs/
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "sagemaker.md": "sagemaker/README.md",
}
PAGES = {source: page for page, source in TOP.items()}
PAGES["README.md"] = "index.md"
FIGURES = "labs/en/figures/"  # its files are figures/NAME on the site
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")
SETTINGS_MARK = "<!-- settings of TrainConfig -->"
LAB_MARK = "<!-- schedule labs on the site -->"
# make docs adds this page after MkDocs, which therefore cannot check the link
LAB_LINK = '<a href="lab/index.html">Open the page</a> (<a href="lab/ja.html" lang="ja">日本語</a>)'
ELSEWHERE = re.compile(r"[a-z]+:|#")


def on_files(files, config):
    """Add the pages from the top of the repository, and the figures of the labs."""
    for page, source in TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=rewrite_links(text, source)))
    for figure in sorted((ROOT / FIGURES).glob("*.svg")):
        files.append(File.generated(config, f"figures/{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite the links of a page in docs/, and add the table of settings to the Python API."""
    path = page.file.src_uri
    if SETTINGS_MARK in markdown:
        markdown = markdown.replace(SETTINGS_MARK, make_settings_table())
    markdown = markdown.replace(LAB_MARK, LAB_LINK)
    return markdown if path in TOP else rewrite_links(markdown, f"docs/{path}")


def make_settings_table():
    """Return a table of the settings of TrainConfig: name, type, default and meaning."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(TrainConfig):
        kind = re.sub(r"^Optional\[(.*)\]$|^Union\[(.*), None\]$", r"\1\2", str(field.type)).replace("|", "\\|")
        meaning = field.metadata["help"].replace("|", "\\|").replace("*", "\\*")
        lines.append(f"| `{field.name}` | `{kind}` | `{field.default!r}` | {meaning} |")
    return "\n".join(lines)


def rewrite_links(text, source):
    """Return the text of a file of the repository with the links that the site needs."""
    parts, end, rewrite = [], 0, functools.partial(_rewrite_link, source=source)
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(rewrite, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def _rewrite_link(link, source):
    picture, words, to = link.groups()
    if ELSEWHERE.match(to):
        return link[0]
    name, sharp, anchor = to.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path in PAGES:
        return f"{picture}[{words}]({PAGES[path]}{sharp}{anchor})"
    if path.startswith(FIGURES):
        return f"{picture}[{words}](figures/{path[len(FIGURES) :]})"
    if path.startswith("docs/"):
        return f"{picture}[{words}]({path[len('docs/') :]}{sharp}{anchor})"
    url = os.environ.get("GLUONLAB_URL")
    if not url:
        return words
    return f"{picture}[{words}]({url}/{'raw' if picture else 'blob'}/HEAD/{path}{sharp}{anchor})"

"""What MkDocs does not do with pages that GitHub also shows: links that leave docs/, and the pages
at the top of the repository.

A link out of docs/ leads to the same page of the site, if it has one, else to GLUONLAB_URL, the
repository on the web; without that, only its words stay.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
TOP = {  # where else pages of the site come from
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "sagemaker.md": "sagemaker/README.md",
}
PAGES = {source: page for page, source in TOP.items()}
PAGES["README.md"] = "index.md"
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:|#")


def on_files(files, config):
    """Add the pages from the top of the repository."""
    for page, source in TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn the links of a page in docs/."""
    path = page.file.src_uri
    return markdown if path in TOP else relinked(markdown, f"docs/{path}")


def relinked(text, source):
    """The text of a file of the repository, with links as the site needs them."""
    parts, end = [], 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(lambda link: _turned(link, source), text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(lambda link: _turned(link, source), text[end:])])


def _turned(link, source):
    picture, words, to = link.groups()
    if ELSEWHERE.match(to):
        return link[0]
    name, sharp, anchor = to.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path in PAGES:
        return f"{picture}[{words}]({PAGES[path]}{sharp}{anchor})"
    if path.startswith("docs/"):
        return f"{picture}[{words}]({path[len('docs/') :]}{sharp}{anchor})"
    url = os.environ.get("GLUONLAB_URL")
    if not url:
        return words
    return f"{picture}[{words}]({url}/{'raw' if picture else 'blob'}/HEAD/{path}{sharp}{anchor})"

"""Render a notebook's Markdown as HTML: MathML, inline pictures, page links, highlighted code."""

from __future__ import annotations

import html
import re
from typing import Any, Callable, Dict, List, NamedTuple

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from gluonlab_labs.figures import prefix_svg_ids
from gluonlab_labs.text import WRITTEN_FIGURE

_FORMATTER = HtmlFormatter(nowrap=True)
_LEXERS = {"sh": "bash", "py": "python", "": "text"}


class Heading(NamedTuple):
    """A line of a page's table of contents."""

    id: str
    title: str


class Renderer:
    """Renders the texts of one page in order; ``picture``: name -> <svg> element."""

    def __init__(self, picture: Callable[[str], str]) -> None:
        self.headings: List[Heading] = []
        self._picture = picture
        self._markdown = MarkdownIt("commonmark", {"html": True, "highlight": _render_fence}).enable(
            ["table", "strikethrough"]
        )
        no = dict.fromkeys(("allow_labels", "allow_space", "allow_digits"), False)
        dollarmath_plugin(self._markdown, **no, double_inline=True, renderer=_render_math)
        self._markdown.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
        self._markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")

    def render(self, text: str) -> str:
        """Return the HTML of one text cell."""
        pieces, end = [], 0
        for figure in WRITTEN_FIGURE.finditer(text):
            pieces += [self._render_text(text[end : figure.start()]), self._render_figure(figure)]
            end = figure.end()
        return "".join([*pieces, self._render_text(text[end:])])

    def _render_text(self, text: str) -> str:
        environment: Dict[str, Any] = {}
        tokens = self._markdown.parse(text, environment)
        for token, inline in zip(tokens, tokens[1:]):
            if token.type == "heading_open" and token.tag == "h2":
                id = f"section-{len(self.headings) + 1}"
                token.attrSet("id", id)
                title = self._markdown.renderer.render([inline], self._markdown.options, environment)
                self.headings.append(Heading(id, re.sub(r"<[^>]+>", "", title)))
        for token in tokens:
            for child in token.children or []:
                if child.type == "link_open":
                    child.attrSet("href", page_link(str(child.attrGet("href"))))
        return str(self._markdown.renderer.render(tokens, self._markdown.options, environment))

    def _render_figure(self, figure: "re.Match[str]") -> str:
        name = figure["name"]
        svg = prefix_svg_ids(self._picture(name), f"in-{name}-")
        svg = svg.replace("<svg ", f'<svg aria-label="{html.escape(figure["alt"], quote=True)}" ', 1)
        caption = self._render_inline(figure["caption"])
        return (
            f'<figure id="fig-{name}"><div class="picture" tabindex="0">{svg}</div>'
            f"<figcaption><b>{figure['number']}</b> {caption}</figcaption></figure>\n"
        )

    def _render_inline(self, text: str) -> str:
        return self._render_text(text).strip().replace("<p>", "").replace("</p>", "")


def page_link(target: str) -> str:
    """Turn a link to a notebook into a link to its page."""
    return re.sub(r"^((?:\.\./)?[\w./-]*)\.ipynb(#.*)?$", lambda match: f"{match[1]}.html{match[2] or ''}", target)


def highlight_code(source: str, language: str = "python") -> str:
    """Return code as HTML with the classes of Pygments."""
    try:
        lexer = get_lexer_by_name(_LEXERS.get(language, language), stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return str(highlight(source, lexer, _FORMATTER)).rstrip("\n")


def code_style() -> str:
    """Return the CSS of `highlight_code` for light and dark pages."""
    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("[data-theme=dark] .code")
    keep = re.compile(r"^(\[data-theme=dark\] )?\.code \.\w+ \{")
    return "\n".join(line for text in (light, dark) for line in text.splitlines() if keep.match(line))


def _render_fence(source: str, language: str, attributes: str) -> str:
    return f'<pre class="code" tabindex="0"><code>{highlight_code(source, language)}</code></pre>\n'


def _render_math(content: str, how: Dict[str, Any]) -> str:
    display = "block" if how.get("display_mode") else "inline"
    return str(convert(content, display=display))

"""Render the outputs of a cell as self-contained HTML."""

from __future__ import annotations

import html
import re
from typing import Any, List

from gluonlab_labs.figures import prefix_svg_ids

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WHOLE_PAGE = re.compile(r"<!doctype|<html|<script", re.I)
DRAWN = {"en": "Drawn by the code above", "ja": "上のコードが描いた図"}
FRAME = {"en": "Shown by the code above", "ja": "上のコードが表示したページ"}


def render_outputs(cell: Any, language: str, prefix: str) -> List[str]:
    """Return the outputs of a code cell; ``prefix``: for ids of pictures, unique on the page."""
    rendered = (
        _render_output(output, cell, language, f"{prefix}-{index}-") for index, output in enumerate(cell.outputs)
    )
    return list(filter(None, rendered))


def _render_output(output: Any, cell: Any, language: str, prefix: str) -> str:
    if output.output_type == "stream":
        return _render_text(output.text, output.name)
    if output.output_type == "error":
        return _render_text(f"{output.ename}: {output.evalue}", "stderr")
    data = output.data
    alt = html.escape(_alternative_text(cell, language), quote=True)
    if "text/html" in data:
        return _render_html(data["text/html"], language)
    if "image/svg+xml" in data:
        svg = prefix_svg_ids(re.sub(r"^.*?(?=<svg)", "", data["image/svg+xml"], flags=re.S), prefix)
        return f'<div class="drawn" role="img" aria-label="{alt}">{svg}</div>'
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f'<div class="drawn"><img alt="{alt}" src="data:{kind};base64,{data[kind].strip()}"></div>'
    return _render_text(data.get("text/plain", ""), "result")


def _alternative_text(cell: Any, language: str) -> str:
    """Return the alternative text of a cell's picture: the cell's option ``:alt:`` or a default."""
    alt_texts = cell.metadata.get("alt", DRAWN)
    return str(alt_texts.get(language, DRAWN[language]))


def _render_html(text: str, language: str) -> str:
    if "<iframe" in text:  # the lab itself has made a page within the page
        return f'<div class="frame">{_add_frame_title(text, language)}</div>'
    if _WHOLE_PAGE.search(text):
        source = html.escape(text, quote=True)
        return f'<div class="frame"><iframe title="{FRAME[language]}" srcdoc="{source}"></iframe></div>'
    return f'<div class="wide">{text}</div>'


def _add_frame_title(text: str, language: str) -> str:
    has_title = re.search(r"<iframe[^>]*\stitle=", text)
    return text if has_title else text.replace("<iframe", f'<iframe title="{FRAME[language]}"', 1)


def _render_text(text: str, kind: str) -> str:
    text = _ANSI.sub("", text).strip("\n")
    return f'<pre class="output {kind}" tabindex="0">{html.escape(text)}</pre>' if text.strip() else ""

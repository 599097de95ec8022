"""The colors of the labs' pictures on a dark page.

The pictures set colors in attributes, out of one palette. Rules of a style sheet override them.
"""

from __future__ import annotations

DARK = {
    "#1f2328": "#e6edf3",  # text
    "#59636e": "#9da7b1",
    "#ffffff": "#0d1117",  # the ground, and text on what is strong
    "#f6f8fa": "#161b22",
    "#d0d7de": "#3d444d",
    "#8c959f": "#7d8590",
    "#0969da": "#6cb6ff",  # device 0
    "#ddf4ff": "#0c2a4a",
    "#bc4c00": "#f0a26a",  # device 1
    "#fff1e5": "#3a210b",
    "#9a6700": "#e0b34d",  # where there are more
    "#fff8c5": "#332b0c",
    "#1a7f37": "#6bc46d",  # data
    "#dafbe1": "#0f2e1a",
    "#8250df": "#c9a6ff",  # what goes from device to device
    "#fbefff": "#2a1a45",
    "#cf222e": "#ff938a",  # faults
    "#ffebe9": "#3d1518",
}


def dark_style() -> str:
    """Return CSS rules for pictures in figures of a page with a dark theme."""
    return "".join(
        f':root[data-theme=dark] figure [{attribute}="{light}"] {{ {attribute}: {dark}; }}\n'
        for light, dark in DARK.items()
        for attribute in ("fill", "stroke")
    )

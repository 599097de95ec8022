"""Renders a schedule as text, as an SVG picture, or as an HTML page to step through."""

from gluonlab.collectives.render.schedule_page import as_page, draw
from gluonlab.collectives.render.schedule_scene import as_text
from gluonlab.collectives.render.schedule_svg import as_svg

__all__ = ["as_page", "as_svg", "as_text", "draw"]

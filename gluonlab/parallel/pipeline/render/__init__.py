"""A pipeline schedule as text, as an SVG picture, and as an HTML page that plays it."""

from gluonlab.parallel.pipeline.render.page import as_page, draw
from gluonlab.parallel.pipeline.render.svg import as_svg
from gluonlab.parallel.pipeline.render.text import as_text

__all__ = ["as_page", "as_svg", "as_text", "draw"]

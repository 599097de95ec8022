"""A pipeline schedule as text, as an SVG picture, and as an HTML page that plays it."""

from gluonlab.parallel.pipeline.render.page import as_page, draw
from gluonlab.parallel.pipeline.render.pictures import as_svg, as_text

__all__ = ["as_page", "as_svg", "as_text", "draw"]

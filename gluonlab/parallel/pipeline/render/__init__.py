"""Drawings of a pipeline schedule: text, an SVG picture, and an animated HTML page."""

from gluonlab.parallel.pipeline.render.pipeline_page import as_page, draw
from gluonlab.parallel.pipeline.render.pipeline_pictures import as_svg, as_text

__all__ = ["as_page", "as_svg", "as_text", "draw"]

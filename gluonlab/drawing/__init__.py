"""Drawing: SVG charts, parts of SVG pictures, frames of HTML pages, and texts in two languages."""

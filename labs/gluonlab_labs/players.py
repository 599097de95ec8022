"""Pages inside a slide that play a schedule."""

from __future__ import annotations

import re
from typing import Any

from gluonlab.errors import ConfigError

# A clicker and Escape lead back to the slides, which hear nothing while the page has the focus.
_BACK = """<script>
addEventListener("keydown", (event) => {
  if (["PageUp", "PageDown", "Escape"].includes(event.key)) parent.postMessage(event.key, "*");
});
</script>
</body>"""
_FORM = re.compile(r"(?P<name>[\w]+) (?P<devices>\d+)(?: (?P<microbatches>\d+))?")


def player_page(request: Any, language: str) -> str:
    """Return the page for an allreduce or pipeline schedule. Raises ConfigError, ScheduleError.

    ``request``: ``ring 4`` for an allreduce and its ranks, or ``1f1b 4 8`` for a pipeline schedule,
    its devices and its microbatches.
    """
    from gluonlab.collectives.render import draw
    from gluonlab.parallel.pipeline.pipeline_schedule import make_pipeline
    from gluonlab.parallel.pipeline.render import draw as draw_pipeline

    form = _FORM.fullmatch(str(request))
    if not form:
        raise ConfigError(
            f"player: {request}: write ring 4 for an allreduce of 4 ranks, or 1f1b 4 8 for a "
            "pipeline of 4 devices and 8 microbatches"
        )
    devices = int(form["devices"])
    if form["microbatches"]:
        schedule = make_pipeline(form["name"], devices, int(form["microbatches"]))
        page = draw_pipeline(schedule, language=language)
    else:
        page = draw(form["name"], devices, language=language)
    return page.replace("</body>", _BACK)

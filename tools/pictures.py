"""The pictures of README and docs, made of what gluonlab really prints and writes here: python
tools/pictures.py [FOLDER]

Needs an environment with gluonlab, and Chromium. Run it when nothing else runs: the rates in the
pictures are measured.
"""

import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #0d1117; color: #e6edf3 }}
pre {{ margin: 0; padding: 22px 26px; font: 15px/1.45 "DejaVu Sans Mono", monospace }}
b {{ color: #7ee787; font-weight: normal }} i {{ color: #d29922; font-style: normal }}
</style><pre>{lines}</pre>"""


def said(folder, *words):
    """What a command prints, with the command before it, as a terminal of its width shows it."""
    command = [sys.executable, "-m", *words]
    result = subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = [html.escape(line) for line in result.stdout.splitlines()]
    lines = [f"<i>{line}</i>" if line.startswith("warning:") else line for line in lines]
    return "\n".join([f"<b>$</b> python -m {html.escape(' '.join(words))}", *lines])


def picture(page, to, width, height):
    """A photograph of a page by Chromium, in few colours."""
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--force-prefers-reduced-motion",
    ]
    command += [
        "--force-device-scale-factor=2",
        f"--window-size={width},{height}",
        f"--screenshot={to}",
        page.resolve().as_uri(),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    Image.open(to).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(to, optimize=True)
    print(f"{to}: {to.stat().st_size // 1024} KiB")


def at_step(page, step):
    """A drawn allreduce, stepped forward as a reader would."""
    keys = f"for (let n = 0; n < {step}; n++) document.getElementById('next').click();"
    script = f"<script>addEventListener('load', () => {{ {keys} }})</script>"
    page.write_text(page.read_text(encoding="utf-8") + script, encoding="utf-8")
    return page


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        page = work / "run.html"
        page.write_text(
            TERMINAL.format(lines=said(work, "gluonlab.run", "--gpus", "2")), encoding="utf-8"
        )
        picture(page, folder / "run.png", 820, 510)
        draw = ["--draw", "ring", "--devices", "4", "--out", "ring.html"]
        said(work, "gluonlab.bench", "allreduce", *draw)
        picture(at_step(work / "ring.html", 3), folder / "allreduce.png", 1100, 880)
        said(work, "gluonlab.bench", "efficiency", "--out", "efficiency.svg")
        shutil.copy(work / "efficiency.svg", folder)
        said(work, "gluonlab.run", "--compare", "1,2", "--out", "study")
        said(work, "gluonlab.report", "study", "--out", "report.html")
        picture(work / "report.html", folder / "study.png", 1100, 1000)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "pictures")

"""Program that makes the pictures of README and docs from real output of gluonlab.

python tools/pictures.py [FOLDER]

It needs an environment with gluonlab, and Chromium. Run it on an idle machine, because it measures
the rates in the pictures.
"""

import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import ring_animation

ROOT = Path(__file__).resolve().parent.parent
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #0d1117; color: #e6edf3 }}
pre {{ margin: 0; padding: 22px 26px; font: 15px/1.45 "DejaVu Sans Mono", monospace }}
b {{ color: #7ee787; font-weight: normal }} i {{ color: #d29922; font-style: normal }}
</style><pre>{lines}</pre>"""


def run_command(folder, *words):
    """Run gluonlab with these words; return the HTML of a terminal with the command and its output."""
    command = [sys.executable, "-m", "gluonlab", *words]
    result = subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = [html.escape(line) for line in result.stdout.splitlines()]
    lines = [f"<i>{line}</i>" if line.startswith("warning:") else line for line in lines]
    return "\n".join([f"<b>$</b> gluonlab {html.escape(' '.join(words))}", *lines])


def take_screenshot(page, output, width, height):
    """Write a screenshot of a page by Chromium as a PNG of 96 colors."""
    command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--force-prefers-reduced-motion"]
    command += [
        "--force-device-scale-factor=2",
        f"--window-size={width},{height}",
        f"--screenshot={output}",
        page.resolve().as_uri(),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    Image.open(output).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(output, optimize=True)
    print(f"{output}: {output.stat().st_size // 1024} KiB")


def advance_page(page, step):
    """Make the page of an allreduce show a later step; return the page."""
    keys = f"for (let n = 0; n < {step}; n++) document.getElementById('next').click();"
    script = f"<script>addEventListener('load', () => {{ {keys} }})</script>"
    page.write_text(page.read_text(encoding="utf-8") + script, encoding="utf-8")
    return page


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        page = work / "run.html"
        page.write_text(TERMINAL.format(lines=run_command(work, "run", "--gpus", "2")), encoding="utf-8")
        take_screenshot(page, folder / "run.png", 850, 510)
        run_command(work, "allreduce", "draw", "ring", "--devices", "4", "--out-file", "ring.html")
        take_screenshot(advance_page(work / "ring.html", 3), folder / "allreduce.png", 1100, 880)
        (folder / "ring.svg").write_text(ring_animation.make_picture(), encoding="utf-8")
        efficiency = [sys.executable, ROOT / "tools" / "prediction", "efficiency", "--out-file", "efficiency.svg"]
        subprocess.run(efficiency, cwd=work, check=True)
        shutil.copy(work / "efficiency.svg", folder)
        run_command(work, "compare", "1,2", "--out", "study")
        run_command(work, "report", "study", "--out-file", "report.html")
        take_screenshot(work / "report.html", folder / "study.png", 1100, 1000)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "pictures")

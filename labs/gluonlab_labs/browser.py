"""Write the page that runs the exercises about schedules in a browser, with Pyodide."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import jinja2
import markupsafe
from markupsafe import Markup

import gluonlab
from gluonlab.errors import RunError
from gluonlab.exercises.browser_lab import BROWSER_EXERCISES
from gluonlab.files.atomic_files import atomic_path, create_writable_folder, write_text
from gluonlab_labs.build import LabFolders
from gluonlab_labs.exercises import find_stubs, last_defined_name
from gluonlab_labs.faults import Faults
from gluonlab_labs.figures import svg_in_language
from gluonlab_labs.handouts import TEMPLATE, template_environment, template_values
from gluonlab_labs.markdown import Renderer
from gluonlab_labs.outline import Series
from gluonlab_labs.pyodide import fetch_pyodide, unpack_pyodide
from gluonlab_labs.source import LANGUAGES, Code, Lab, Text
from gluonlab_labs.text import MarkdownWriter

PAGE_FILES = ("page.js", "worker.js", "page.css")
FETCHED_FILES = ("gluonlab.zip", "pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip", "pyodide/pyodide-lock.json")
SCHEDULE_LABS = ("04", "10")  # their stubs use Transfer, which another cell of the notebook imports
TRANSFER_IMPORT = "from gluonlab.collectives.schedule import Transfer\n\n\n"
RULES_LAB, RULES = "10", re.compile(r"^## .*(The rules|規則)", re.M)
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the same archive in every build

# This program prints the modules of gluonlab that the page needs: it runs all solutions.
_LIST_MODULES = """
import sys
import gluonlab  # adds a finder, which must not come first
class RefuseMissing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "mxnet", "click"):
            raise ModuleNotFoundError(f"no {name} in a browser", name=name)
sys.meta_path.insert(0, RefuseMissing())
import runpy
from pathlib import Path
from gluonlab.exercises.browser_lab import judge_cell
for path, name in zip(sys.argv[1::2], sys.argv[2::2]):
    print(judge_cell(Path(path).stem, "", runpy.run_path(path)[name], "en"), file=sys.stderr)
for name, module in sys.modules.items():
    if name.partition(".")[0] == "gluonlab":
        print(module.__file__)
"""


def write_browser_lab(series: Series, folders: LabFolders, root: Path, cache: Path) -> None:
    """Write the page, its worker, Pyodide and gluonlab's modules to the folder ``root``.

    ``cache``: the folder for the downloaded archive of Pyodide. Raises ConfigError and RunError if
    Pyodide cannot be downloaded, and OutputError.
    """
    archive = fetch_pyodide(cache)
    names = {id: str(last_defined_name(stub.source)) for id, (_, stub) in _find_browser_stubs(series).items()}
    content = pack_modules(folders, names)
    with create_writable_folder(root):
        unpack_pyodide(archive, root / "pyodide")
        with atomic_path(root / "gluonlab.zip") as temporary:
            temporary.write_bytes(content)
        size = sum((root / name).stat().st_size for name in FETCHED_FILES)
        for name in PAGE_FILES:
            write_text(root / name, (TEMPLATE / "browser" / name).read_text(encoding="utf-8"))
        for language in LANGUAGES:
            page = "index.html" if language == "en" else f"{language}.html"
            write_text(root / page, render_page(series, folders, language, names, size))
    print(f"wrote the schedule labs for browsers to {root}")


def _find_browser_stubs(series: Series) -> Dict[str, Tuple[Lab, Code]]:
    stubs = {id: (lab, cell) for lab in series.labs for id, cell in find_stubs(lab).items()}
    return {id: stubs[id] for id in BROWSER_EXERCISES}


def pack_modules(folders: LabFolders, names: Dict[str, str]) -> bytes:
    """Return a zip archive of the modules that the page needs, and of their data files.

    ``names``: the function of each exercise. Raises RunError if a module needs NumPy or MXNet.
    """
    arguments = [text for id, name in names.items() for text in (str(folders.solutions / f"{id}.py"), name)]
    package = Path(gluonlab.__file__).resolve().parent
    command = [sys.executable, "-c", _LIST_MODULES, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=package.parent, timeout=300)
    if result.returncode:
        raise RunError(f"the schedule labs do not run without NumPy: {result.stderr.strip().splitlines()[-1]}")
    modules = [Path(line) for line in result.stdout.splitlines() if line]
    files = {*modules, *(data for module in modules for data in _data_files(module.parent))}
    roots = dict.fromkeys(files, package.parent)
    for library in (jinja2, markupsafe):  # the animations are made from templates
        library_folder = Path(str(library.__file__)).parent
        roots.update(dict.fromkeys(library_folder.glob("*.py"), library_folder.parent))
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(roots):
            info = zipfile.ZipInfo(str(path.relative_to(roots[path])), ZIP_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return buffer.getvalue()


def _data_files(folder: Path) -> Iterator[Path]:
    """Yield the data files of a package: in its folder, and in folders that are not packages."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _data_files(path)
        elif path.is_file() and path.suffix not in (".py", ".pyc"):
            yield path


def render_page(series: Series, folders: LabFolders, language: str, names: Dict[str, str], size: int) -> str:
    """Return the HTML page in one language. ``size``: the number of bytes that its worker loads."""

    @lru_cache(maxsize=None)
    def picture(name: str) -> str:
        return svg_in_language(folders.figures / f"{name}.svg", language)

    texts = {number: _read_texts(series.by_number[number], language, series) for number in ("04", "05", "10")}
    exercises: List[Dict[str, Any]] = []
    for id, (lab, stub) in _find_browser_stubs(series).items():
        title, text = _split_title(texts[lab.number][id])
        code = TRANSFER_IMPORT + stub.source if lab.number in SCHEDULE_LABS else stub.source
        html = _unlink(Renderer(picture).render(text))
        exercises.append({"id": id, "title": title, "html": Markup(html), "stub": code, "name": names[id]})
    rules = _unlink(Renderer(picture).render(_split_title(texts[RULES_LAB]["rules"])[1]))
    machine = _unlink(Renderer(picture).render(texts["04"].get("figure", "")))
    words = json.loads((TEMPLATE / "browser" / "words.json").read_text(encoding="utf-8"))[language]
    data = {"exercises": [{**each, "html": ""} for each in exercises], "words": words, "bytes": size}
    return (
        template_environment()
        .get_template("browser/page.html")
        .render(
            language=language,
            exercises=exercises,
            data=Markup(_script_json(data)),
            rules=Markup(rules),
            machine=Markup(machine),
            text=words,
            **template_values(),
        )
    )


def _script_json(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _read_texts(lab: Lab, language: str, series: Series) -> Dict[str, str]:
    """Return the text of each exercise of a lab, by id, and of lab 10 also its ``rules``.

    The text of an exercise begins with its heading, directly before the stub.
    """
    writer, texts, latest = MarkdownWriter(lab, language, series, Faults(lab.path)), {}, ""
    stubs = {cell.source: id for id, cell in find_stubs(lab).items()}
    for part in lab.parts:
        if isinstance(part, Text):
            latest = writer.write_block(part)
            if lab.number == RULES_LAB and RULES.search(latest):
                # without the question of the first guess, which only the notebook can record
                texts["rules"] = re.split(r'\n`PUZZLES\["10-1"\]', latest)[0]
            figure = re.search(r'<a id="fig-p3-links"></a>\n.*?(?=\n\n(?!\*\*)|\Z)', latest, re.S)
            if figure:
                texts["figure"] = figure[0]
        elif isinstance(part, Code) and part.source in stubs:
            texts[stubs[part.source]] = latest[re.search(r"^### ", latest, re.M).start() :]  # type: ignore[union-attr]
    return texts


def _split_title(text: str) -> Tuple[str, str]:
    """Split a text that begins with a heading into the heading, and the text below it."""
    heading, _, rest = text.partition("\n")
    return re.sub(r"<[^>]*>", "", heading).lstrip("# ").strip(), rest


def _unlink(html: str) -> str:
    """Replace links to other labs, which this site does not contain, by their text."""
    return re.sub(r'<a href="(?!https?:)[^"]*">(.*?)</a>', r"\1", html, flags=re.S)

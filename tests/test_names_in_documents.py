"""Every name of gluonlab in documents and labs exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, read_blocks

LABS = sorted([*(ROOT / "labs" / "source").rglob("*.md"), *(ROOT / "labs").glob("*.md")])
SOLUTIONS = sorted((ROOT / "labs" / "solutions").glob("*.py"))
OTHERS = [*ROOT.glob("*.md"), *(ROOT / "sagemaker").glob("*.md")]
DOCUMENTS = sorted({*PAGES, *LABS, *OTHERS})

DOTTED = re.compile(r"(?<![\w/.-])gluonlab(?:\.[A-Za-z_]\w*)+(?![\w-])")
# `A` and `B(...)` of `gluonlab.module`
OF_MODULE = re.compile(r"((?:`[^`\n]+`[,\s]*(?:and|or)?\s*)+)(?:of|from)\s+`(gluonlab[\w.]*)`")
QUOTED = re.compile(r"`([A-Za-z_]\w*)[^`]*`")
# a cell of a lab, after its options
CELL = re.compile(r"^```\{code-cell\}.*\n(?:^:.*\n)*(.*?)^```$", re.M | re.S)
FILES = re.compile(r"\.(json|png|css|js|html|tar|md|yaml)$")


def exists(name):
    """Return whether a dotted name is a module, or an attribute in a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return part in getattr(value, "__dataclass_fields__", ())
            value = getattr(value, part)
        return True
    return False


def find_imports(code, where):
    """Yield the dotted names that code imports, without IPython's own lines."""
    plain = "\n".join("" if re.match(r"\s*[%!]", line) else line for line in code.splitlines())
    for node in ast.walk(ast.parse(plain, str(where))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gluonlab":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "gluonlab")


def find_names(document):
    text = document.read_text(encoding="utf-8")
    names = {name for name in DOTTED.findall(text) if not FILES.search(name)}
    for quoted, module in OF_MODULE.findall(text):
        names |= {f"{module}.{name}" for name in QUOTED.findall(quoted) if name != "gluonlab"}
    for code in [*CELL.findall(text), *(block.code for block in read_blocks(document, "python"))]:
        names |= set(find_imports(code, document.name))
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_documents_exist(document):
    assert [name for name in sorted(find_names(document)) if not exists(name)] == []


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.name)
def test_imports_of_solutions_exist(solution):
    code = solution.read_text(encoding="utf-8")
    assert [name for name in find_imports(code, solution) if not exists(name)] == []


# `A` and `B` of `path.py`
OF_FILE = re.compile(r"((?:`[\w.]+`(?:,? and |, )?)+)\s+(?:of|in)\s+`([\w./-]+\.py)`")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\w|\w+\.py)`")
MAPS = [ROOT / "docs" / name for name in ("architecture.md", "mxnet-known-issues.md")]


def find_missing_names(text):
    """Yield files that do not exist, and names that their files do not contain."""
    for path in PATH.findall(text):
        if find_file(path) is None:
            yield path
    for names, path in OF_FILE.findall(text):
        code = find_file(path).read_text(encoding="utf-8") if find_file(path) else ""
        for name in QUOTED.findall(names):
            if not re.search(rf"\b{name}\b", code):
                yield f"{name} of {path}"


def find_file(path):
    return next((file for file in (ROOT / path, ROOT / "gluonlab" / path) if file.exists()), None)


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_files_and_names_in_maps_of_the_code_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert len(PATH.findall(text)) >= 50 and len(OF_FILE.findall(text)) >= 20
    assert list(find_missing_names(text)) == []


@pytest.mark.parametrize("text", ["`training/lop.py`", "`lop.py`", "`tests/nowhere`", "`trian` of `training/loop.py`"])
def test_missing_files_and_names_are_found(text):
    assert len(list(find_missing_names(text))) == 1


def test_the_tests_that_the_makefile_names_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"^ROAD_OF = ((?:.*\\\n)*.*)$", text, re.M).group(1)
    names = [Path("tests", name) for name in listed.replace("\\", "").split()]
    files = [name.with_name(f"test_{name.name}.py") for name in names]
    files += map(Path, re.findall(r"tests/[\w/]+\.py", text))
    assert len(files) > 40 and [str(file) for file in files if not (ROOT / file).exists()] == []


def test_there_are_names():
    names = [name for document in DOCUMENTS for name in find_names(document)]
    assert len(names) >= 230
    assert "gluonlab.launch.parameter_server_group.ParameterServer" in names
    assert not exists("gluonlab.launch.ParameterServer") and not exists("gluonlab.nothing")

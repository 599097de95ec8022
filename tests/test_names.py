"""Names and docstrings follow the rules of CONTRIBUTING.md, as far as a program can check them."""

import ast
import collections
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("gluonlab", "labs/gluonlab_labs", "sagemaker", "tools", "tests/support")
# Participles, prepositions and adjectives. Words that are also verbs are not in the list: set, cut.
NOT_A_NAME = """
    able about accounted accumulated added after again against ahead aligned alike all allowed alone always among
    anew answered apart around as aside asked assembled assigned at available averaged awaited away because been
    before begun below beside best between both bound broken brought built busy by called came carried certain
    changed checked chosen clipped combined common compared compiled completed compressed computed converted copied
    counted covered damaged decoded described different divided done downloaded drawn due dumped each early earned
    either elsewhere empty ended enough equal evaluated ever everywhere exact exchanged executed existing expected
    explained exported extended failed fastest few filled finished first fitted fixed folded for forced found free
    freely from full gathered given gone good got guarded guessed handled harmful harmless heard held here hidden
    hinted idle ignored improved in inside intact interrupted into it joined judged just kept killed known labeled
    labelled large larger largest last late later learned learnt least left like likewise listed loaded locked long
    looked lost made many marked matched measured merged met missed missing mixed more most moved named narrowest
    near nearest never new newest next no nobody none noted nothing now numbered observed of off often on once one
    only onto opened optional ordered other others out outside over own owned packed padded parsed passed perhaps
    placed plain planned played positive possible posted predicted prepared priced printable printed profiled proved
    proven queued quick quickly raised rare reached ready real recorded refused released renamed replaced replicated
    reported required reserved restarted restored resumed returned rewritten right rounded said same saved saw
    scaled scheduled scored seen sent settled several shaped sharded short shown shuffled silently singly slowest
    small smallest smoothed so solved some soon sorted spread staged started stated stopped stored stripped such
    summed taken then there those through to together told too trained tried trusted turned unable under unfit
    unfused unique unknown unnumbered unreadable until unusable unwrapped up updated upon usable used useless
    validated waited wanted warned watched weighted what when where whether which while who whole whose why widened
    with within without worst wrapped writable written wrong
"""
# Names that users type: the function of the labs, the message about an unknown name, an algorithm,
# and a schedule's method.
KEPT = {"because", "unknown", "sharded", "placed"}
WEAK_BEGINNINGS = ("What", "Who", "Whose", "Those", "Of", "Where", "How")
# Names of files and classes that play the same role in several packages.
SAME_ROLE = {"__init__", "__main__", "loop", "memory", "recipes", "replica", "scaling", "strategy", "Epoch"}
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def weak_names(source):
    """Yield the functions whose name is a participle, a preposition or an adjective."""
    weak = set(NOT_A_NAME.split()) - KEPT
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "name", None) if isinstance(node, ast.FunctionDef) else None
        if name and not name.startswith("__") and name.strip("_") in weak:
            yield f"{node.lineno}: {name}"


def weak_docstrings(source):
    """Yield the docstrings that begin with a relative clause or a genitive."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            first = (ast.get_docstring(node) or "").split(" ")[0].strip(",:")
            if first in WEAK_BEGINNINGS:
                yield f"{getattr(node, 'lineno', 1)}: {first}"


@pytest.mark.parametrize("rule", [weak_names, weak_docstrings])
def test_names_and_docstrings_follow_the_rules(rule):
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in SOURCES}
    assert [f"{path}:{line}" for path, text in texts.items() for line in rule(text)] == []


def test_no_file_and_no_class_of_the_package_shares_its_name_with_another():
    names = collections.Counter()
    for path in (ROOT / "gluonlab").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names[path.stem] += 1
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} - SAME_ROLE == set()


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (weak_names, "def _found(): pass"),
        (weak_names, "def f():\n    def inside(): pass"),
        (weak_docstrings, 'def f():\n    """What it does."""'),
        (weak_docstrings, '"""Of a module."""'),
    ],
)
def test_the_rules_find_what_breaks_them(rule, source):
    assert len(list(rule(source))) == 1

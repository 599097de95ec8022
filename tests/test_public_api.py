"""The public names of gluonlab can be imported, and are documented.

tests/test_layers.py checks that everything public has a docstring.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import gluonlab

PACKAGE = Path(gluonlab.__file__).parent
NAMES = [
    "BucketedTrainer", "LivePlot", "Loader", "TrainConfig", "frame", "get_model", "gpus", "load_dataset",
    "load_run", "make_kvstore", "optimize", "train",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_importable_and_documented(name):
    value, module = getattr(gluonlab, name), gluonlab._PUBLIC[name]
    assert value.__name__ == name
    assert inspect.getdoc(value)
    assert value is getattr(importlib.import_module(value.__module__), name)
    page = (PACKAGE.parent / "docs" / "api.md").read_text(encoding="utf-8")
    assert {module, f"{module}.{name}"} & set(re.findall(r"^::: (.+)$", page, re.M))


def test_dir_lists_the_public_names():
    public = {name for name in dir(gluonlab) if name[0] != "_" and not inspect.ismodule(getattr(gluonlab, name))}
    assert public - {"Any", "List", "TYPE_CHECKING", "annotations"} == set(NAMES)
    assert gluonlab.__all__ == NAMES, "what from gluonlab import * brings"


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {alias.asname: node.module for node in block.body for alias in node.names if alias.asname == alias.name}
    assert declared == gluonlab._PUBLIC


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gluonlab' has no attribute 'trian'"):
        gluonlab.trian  # noqa: B018
    with pytest.raises(ImportError):
        from gluonlab import trian  # noqa: F401


def test_the_package_is_typed_and_its_version_is_the_one_that_setup_reads():
    assert (PACKAGE / "py.typed").is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+", gluonlab.__version__)
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.+)"', source, re.M) == [gluonlab.__version__]

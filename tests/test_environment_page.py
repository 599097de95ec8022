"""docs/environment.md lists every variable of gluonlab."""

import re

import pytest
from support.pages import ROOT

PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
NAME = re.compile(r"""["']_?((?:GLUONLAB|MXNET|OMP|GOMP|NVIDIA|OPENBLAS)_[A-Z0-9_]*[A-Z0-9])["']""")


def code_names():
    """Return the names of environment variables that the package quotes."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "gluonlab").rglob("*.py"))
    return sorted(set(NAME.findall(code)))


@pytest.mark.parametrize("name", [name for name in code_names() if name.startswith("GLUONLAB")])
def test_a_variable_of_gluonlab_is_on_the_page(name):
    assert re.search(rf"`_?{name}`", PAGE), name


@pytest.mark.parametrize(
    "name", [name for name in code_names() if name.startswith(("MXNET", "OMP", "GOMP", "NVIDIA", "OPENBLAS"))]
)
def test_a_variable_that_changes_mxnet_is_on_the_page(name):
    assert f"`{name}`" in PAGE, name


def test_the_page_lists_no_variable_of_gluonlab_that_no_code_reads():
    new = {"GLUONLAB_MASTER_ADDR", "GLUONLAB_WORLD_SIZE"}
    code = {name for name in code_names() if name.startswith("GLUONLAB")} | {"GLUONLAB_COMPLETE"} | new
    assert set(re.findall(r"`_?(GLUONLAB_\w+)`", PAGE)) <= code

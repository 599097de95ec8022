"""docs/environment.md lists every environment variable of gluonlab, MXNet and OpenMP that the package uses."""

import re

import pytest
from support.pages import ROOT

PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "gluonlab").rglob("*.py")))
NAME = r"((?:GLUONLAB|MXNET|OMP|GOMP|NVIDIA|OPENBLAS)_[A-Z0-9_]*[A-Z0-9])"
IN_CODE = sorted(set(re.findall(rf"""["']_?{NAME}["']""", CODE)))
NEW_NAMES = {"GLUONLAB_MASTER_ADDR", "GLUONLAB_WORLD_SIZE"}


@pytest.mark.parametrize("name", IN_CODE)
def test_a_variable_is_on_the_page(name):
    assert re.search(rf"`_?{name}`", PAGE)


def test_every_variable_of_gluonlab_on_the_page_is_used():
    listed = {name for name in re.findall(rf"`_?{NAME}`", PAGE) if name.startswith("GLUONLAB")}
    assert len(listed) >= 15 and listed <= {*IN_CODE, *NEW_NAMES}

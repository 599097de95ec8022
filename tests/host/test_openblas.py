"""numpy is loaded with threads that sleep soon, and nothing else is told so."""

import pytest

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"


@pytest.mark.parametrize(
    ("exported", "while_it_loads", "later"),
    [({}, "20", "None"), ({VARIABLE: "26"}, "26", "26")],
    ids=["nothing", "by the user"],
)
def test_numpy_loads_with_what_the_user_says_or_else_with_threads_that_sleep_soon(
    python, tmp_path, exported, while_it_loads, later
):
    say = f"import os; print(os.environ.get({VARIABLE!r}))\n"
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(say)
    found = python("-c", f"import gluonlab, numpy; {say}", path=[str(tmp_path)], **exported).stdout
    assert found.split() == [while_it_loads, later]

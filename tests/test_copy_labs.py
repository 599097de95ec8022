"""gluonlab labs copies missing files, and never changes existing ones."""

import filecmp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.labs import copy_labs, notebook_folder
from gluonlab.labs.__main__ import main

PATHS = [path for path in notebook_folder("en").rglob("*") if path.is_file() and ".ipynb_checkpoints" not in path.parts]
FILES = sorted(path.relative_to(notebook_folder("en")) for path in PATHS)
LABS = sum(name.suffix == ".ipynb" for name in FILES)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), st.sampled_from([None, b"", b"mine"])))
def test_existing_files_remain_and_the_others_equal_the_originals(tmp_path_factory, before):
    to = tmp_path_factory.mktemp("labs") / "mine"
    for name, content in before.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            (to / name).symlink_to("nowhere")
        else:
            (to / name).write_bytes(content)
    copied = copy_labs("en", to)
    assert set(copied.kept) == set(before) and set(copied.new) == set(FILES) - set(before)
    for name in FILES:
        if name not in before:
            assert filecmp.cmp(to / name, notebook_folder("en") / name, shallow=False)
        elif before[name] is None:
            assert (to / name).is_symlink() and not (to / name).exists()
        else:
            assert (to / name).read_bytes() == before[name]
    again = copy_labs("en", to)
    assert again.new == [] and set(again.kept) == set(before)


def test_it_prints_new_and_kept_notebooks(empty_cwd, ended):
    words = "mine", "--language", "ja"
    expected = f"{LABS} new notebooks in mine\nto open the notebooks, run jupyter lab mine\n"
    assert ended(main, *words) == (0, expected, "")
    (empty_cwd / "mine" / "01-devices.ipynb").write_text("answered")
    (empty_cwd / "mine" / "02-by-hand.ipynb").unlink()
    kept = "1 new notebook in mine\nyour file was kept: mine/01-devices.ipynb\n"
    kept += "to open the notebooks, run jupyter lab mine\n"
    assert ended(main, *words) == (0, kept, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["file"], "cannot write file: File exists; choose another folder"),
        (["x", "--language", "jp"], "unknown language 'jp': choose en, ja"),
        (["/proc/gluonlab"], "cannot write /proc/gluonlab: No such file or directory; "),
        (["a\0b"], "it is not a valid file name"),
        ([""], "DIR is an empty string: pass a folder"),
        ([" "], "DIR is an empty string: pass a folder"),
    ],
)
def test_a_mistake_is_one_line(words, line, empty_cwd, ended):
    (empty_cwd / "file").touch()
    status, out, err = ended(main, *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and line in err
    assert [path.name for path in empty_cwd.iterdir()] == ["file"]

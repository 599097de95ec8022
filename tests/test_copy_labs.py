"""python -m gluonlab.labs copies missing files, and never changes existing ones."""

import filecmp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.labs import copy_labs, notebook_folder
from gluonlab.labs.__main__ import main

FILES = sorted(path.relative_to(notebook_folder("en")) for path in notebook_folder("en").rglob("*")
               if path.is_file() and ".ipynb_checkpoints" not in path.parts)  # fmt: skip
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


def run_main(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return (ended.value.code, *capsys.readouterr())


def test_it_prints_new_and_kept_notebooks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_main(["mine", "--language", "ja"], capsys) == (
        0, f"{LABS} new notebooks in mine\nto work in them: jupyter lab mine\n", ""
    )  # fmt: skip
    (tmp_path / "mine" / "01-devices.ipynb").write_text("answered")
    (tmp_path / "mine" / "02-by-hand.ipynb").unlink()
    status, out, err = run_main(["mine", "--language", "ja"], capsys)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "1 new notebook in mine",
        "yours is kept: mine/01-devices.ipynb",
        "to work in them: jupyter lab mine",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["file"], "cannot write file: File exists; choose another folder"),
        (["x", "--language", "jp"], "unknown language 'jp': choose en, ja"),
        (["/proc/gluonlab"], "cannot write /proc/gluonlab: No such file or directory; "),
        (["a\0b"], "that is no name for a file"),
        ([""], "DIR is empty: name a folder"),
        ([" "], "DIR is empty: name a folder"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    status, out, err = run_main(words, capsys)
    assert (status, out, err.count("\n")) == (2, "", 1) and line in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]

"""Very long arguments and escape sequences: one line, status 2, no side effects."""

import importlib
import io

import pytest
from support.commands import call_run

from gluonlab.cli.command import _replace_showwarning
from gluonlab.errors import GluonlabWarning

LONG = {
    "letters": "a" * 5000, "digits": "9" * 5000, "brackets": "[" * 5000, "parentheses": "(" * 5000,
    "folders": "a/" * 2500, "list": "1," * 2500 + "1", "product": "cpu*" + "9" * 5000,
}  # fmt: skip
ARGUMENTS = {  # of each command, with {} where the long one stands; or what it must not be there
    "run": [
        "{}", "--{}", "--gpus {}", "--devices {}", "--dataset {}", "--dataset folder:{}",
        "--dataset mnist --data-dir {}", "--dataset imagenette --data-dir {}", "--model {}",
        "--model gluoncv:{}", "--pretrained {}", "--recipe {}", "--out {}", "compare {}",
        "evaluate {}", "find-batch-size {}", "--normalize {}", "--dtype {}", "--lr-schedule {}",
        "--lr-decay-epochs {} --lr-schedule step", "--kvstore {}", "--topology {} --kvstore ring",
        "--compress {}", "--compress 2bit:{}", "--bucket-bytes {}", "--optimizer {}",
        "--momentum-rule {}", "--gpus 1 --out {}",
    ],
    "bench": ["{}", "--{}", "compare {} {}", "gradients --kvstores {}", "frameworks --model {}"],
    "allreduce": ["{}", "--{}", "bench {}", "draw {}", "bench --devices {}", "bench --topology {}"],
    "data": ["{}", "download {}", "list --data-dir {}", "verify {}", "verify mnist --data-dir {}",
             "path {}", "path mnist --data-dir {}", "pack {} --out x", "pack folder:{} --out x",
             "pack digits --out {}", "download mnist --data-dir {}"],
    "doctor": ["{}", "--{}"],
    "exercises": ["{}", "list {}", "grade {}", "grade x --timeout {}"],
    "launch": ["{}", "-n {} run", "-n 2 {}", "--backend {} -n 2 run"],
    "report": ["{}", "--{}", "{} --out-file {}"],
    "scratch": ["{}", "--{}", "--gpus {}", "--devices {}", "--dataset {}", "--data-dir {}"],
}  # fmt: skip


@pytest.fixture
def no_work(monkeypatch, empty_cwd):
    """An argument that a command could take makes it train or fetch: neither is tried here."""
    monkeypatch.setenv("GLUONLAB_DATA", str(empty_cwd / "data"))
    return empty_cwd


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("command", ARGUMENTS)
def test_an_argument_that_is_far_too_long_is_one_short_line(command, kind, ended, no_work):
    module = command if command == "allreduce" else f"{command}.__main__"
    main = call_run if command == "run" else importlib.import_module(f"gluonlab.{module}").main
    for form in ARGUMENTS[command]:
        words = [word.replace("{}", LONG[kind]) for word in form.split()]
        status, out, err = ended(main, *words)
        assert (status, out, err.count("\n")) == (2, "", 1), f"{form}: {err}"
        assert err.startswith("error: ") and len(err) < 4000 and "Error" not in err, form
    assert list(no_work.iterdir()) == []


def test_messages_and_warnings_contain_no_escape_sequence(ended, empty_cwd, capsys):
    from gluonlab.report.__main__ import main

    status, _, err = ended(main, "\x1b[2Jnone\rhere\u202e")
    assert status == 2 and err[:-1].isprintable() and r"\x1b[2Jnone" in err
    show = _replace_showwarning(lambda *arguments: None)
    show(GluonlabWarning("left out: a\x1b[2J\n.jpg"), GluonlabWarning, "x.py", 1, io.StringIO())
    assert capsys.readouterr().err == "warning: left out: a\\x1b[2J .jpg\n"

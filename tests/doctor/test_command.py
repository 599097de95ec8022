"""python -m gluonlab.doctor: options in, lines or one JSON object out, and the exit status."""

import json

import pytest
from support.file_server import FileServer

from gluonlab.doctor import examination
from gluonlab.doctor.__main__ import main
from gluonlab.doctor.findings import fault, ok, warning


@pytest.fixture
def found(monkeypatch):
    """The checks find what the test says, instead of looking."""
    listed = []
    monkeypatch.setattr(examination, "_software", lambda: [("x", lambda: listed)])
    monkeypatch.setattr(examination, "_gpus", lambda: [])
    monkeypatch.setattr(examination, "_places", lambda: [])
    return listed


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (ok("x", "fine"), 0),
        (warning("x", "slow"), 0),
        (fault("x", "broken", "because", "mend it"), 1),
    ],
)
def test_the_exit_status_is_1_for_a_fault_and_0_without(ended, found, finding, status):
    found.append(finding)
    assert ended(main)[0] == status
    code, out, err = ended(main, "--json")
    told = json.loads(out)
    assert (code, err) == (status, "")
    assert list(told) == ["status", "seconds", "findings"]
    assert told["status"] == finding.status
    assert told["findings"] == [vars(finding)]


def test_a_check_that_breaks_leaves_the_others(ended, found, monkeypatch):
    monkeypatch.setattr(examination, "_places", lambda: [("disk", lambda: [][0])])
    found.append(ok("x", "fine"))
    code, out, err = ended(main)
    assert (code, err) == (0, "")
    assert "ok       x     fine" in out
    assert "warning  disk  this check itself failed: IndexError: list index out of range" in out


def test_network_asks_the_mirrors_that_it_is_given(capsys, found):
    server = FileServer({"a.gz": b"content"})
    try:
        with pytest.raises(SystemExit) as raised:
            main(
                ["--network", "--json"],
                obj=lambda: {"made-up": (f"{server.url}a.gz",), "gone": (f"{server.url}b.gz",)},
            )
    finally:
        server.close()
    told = json.loads(capsys.readouterr().out)
    assert raised.value.code == 1
    assert [(finding["check"], finding["status"]) for finding in told["findings"]] == [
        ("network", "ok"),
        ("network", "fault"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trian"], "unknown option '--trian': did you mean '--train'?"),
        (["now"], "unexpected 'now'"),
        (["--json=1"], "takes no value"),
    ],
)
def test_mistakes_are_one_line(ended, arguments, words):
    code, out, err = ended(main, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err


def test_help_and_a_missing_mxnet_need_no_mxnet(python):
    result = python(
        "-c",
        "import sys, gluonlab.doctor.__main__; print({'mxnet', 'numpy', "
        "'requests'} & set(sys.modules))",
    )
    assert result.stdout.strip() == "set()"
    assert "--network" in python("-m", "gluonlab", "doctor", "--help").stdout

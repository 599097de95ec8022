"""python -m gluonlab.doctor: options in, lines or one JSON object out, and the exit status."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.file_server import FileServer
from support.processes import clean_environment

from gluonlab.doctor import __main__ as command
from gluonlab.doctor.__main__ import main
from gluonlab.doctor.findings import fault, ok, warning
from gluonlab.gpu import isolated_process


@pytest.fixture
def found(monkeypatch):
    """The checks find what the test says, instead of looking."""
    listed = []
    monkeypatch.setattr(command, "_software_checks", lambda: [("x", lambda: listed)])
    monkeypatch.setattr(command, "_gpu_checks", lambda: [])
    monkeypatch.setattr(command, "_host_checks", lambda: [])
    return listed


@pytest.mark.parametrize(
    ("finding", "status"),
    [(ok("x", "fine"), 0), (warning("x", "slow"), 0), (fault("x", "broken", "because", "mend it"), 1)],
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
    monkeypatch.setattr(command, "_host_checks", lambda: [("disk", lambda: [][0])])
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
                ["--network", "--json"], obj=lambda: {"made-up": (f"{server.url}a.gz",), "gone": (f"{server.url}b.gz",)}
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
        "-c", "import sys, gluonlab.doctor.__main__; print({'mxnet', 'numpy', 'requests'} & set(sys.modules))"
    )
    assert result.stdout.strip() == "set()"
    assert "--network" in python("-m", "gluonlab", "doctor", "--help").stdout


def script(tmp_path, monkeypatch, code):
    """The module ``looked_at``, which does ``code`` in a process of its own."""
    (tmp_path / "looked_at.py").write_text("from gluonlab.gpu.isolated_process import send_answer\n" + code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "looked_at"


def test_a_process_is_listened_to_until_it_crashes(tmp_path, monkeypatch):
    code = "import os, sys\nsend_answer(a=1)\nprint('no JSON')\nprint('[1]')\nsend_answer(b=2)\n"
    code += "print('last words', file=sys.stderr, flush=True)\nos.abort()"
    outcome = isolated_process.run_isolated(script(tmp_path, monkeypatch, code), timeout_s=60)
    assert outcome.answers == [{"a": 1}, {"b": 2}]
    assert (outcome.failure, outcome.last_line) == ("crashed (SIGABRT)", "last words")
    assert outcome.first_answer("b") == {"b": 2}
    assert outcome.first_answer("c") is None


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    outcome = isolated_process.run_isolated(
        script(tmp_path, monkeypatch, "import time\nsend_answer(a=1)\ntime.sleep(600)"), timeout_s=1
    )
    assert outcome.failure == "was still busy after 1 s"


def test_a_process_finds_modules_where_this_one_does(tmp_path, monkeypatch):
    outcome = isolated_process.run_isolated(
        script(tmp_path, monkeypatch, "import sys\nsend_answer(path=sys.path, argv=sys.argv[1:])"), "x", timeout_s=60
    )
    assert outcome.answers == [{"path": sys.path, "argv": ["x"]}]
    assert outcome.failure == ""


def test_a_process_that_fails_says_with_what(tmp_path, monkeypatch):
    assert (
        isolated_process.run_isolated(script(tmp_path, monkeypatch, "raise SystemExit(3)"), timeout_s=60).failure
        == "ended with status 3"
    )


def test_ctrl_c_ends_a_process_that_hangs(tmp_path):
    """At once, and with it: nobody waits for its end."""
    (tmp_path / "hangs.py").write_text(
        "import os, sys, time\nprint(os.getpid(), file=open('pid', 'w'), flush=True)\ntime.sleep(600)"
    )
    code = (
        "from gluonlab.doctor import __main__\n"
        "__main__._gpu_checks = __main__._host_checks = list\n"
        "__main__._software_checks = lambda: [('x', lambda: "
        "__main__.check_mxnet.run_isolated('hangs', timeout_s=600))]\n__main__.main()"
    )
    doctor = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=clean_environment(path=[str(tmp_path)]), stderr=subprocess.PIPE,
        encoding="utf-8",
    )  # fmt: skip
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().endswith("\n")):
        assert doctor.poll() is None
        time.sleep(0.05)
    doctor.send_signal(signal.SIGINT)
    said = doctor.communicate(timeout=60)[1]
    assert (doctor.returncode, said.strip()) == (130, "interrupted")
    assert not os.path.exists(f"/proc/{int(pid.read_text())}")

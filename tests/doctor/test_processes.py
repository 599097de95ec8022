"""The doctor's processes of their own, which may crash or hang, and the end of all of them."""

import os
import signal
import subprocess
import sys
import time

from support.processes import clean_environment

from gluonlab.gpu import process


def script(tmp_path, monkeypatch, code):
    """The module ``looked_at``, which does ``code`` in a process of its own."""
    (tmp_path / "looked_at.py").write_text("from gluonlab.gpu.process import tell\n" + code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "looked_at"


def test_a_process_is_listened_to_until_it_crashes(tmp_path, monkeypatch):
    code = "import os, sys\ntell(a=1)\nprint('no JSON')\nprint('[1]')\ntell(b=2)\n"
    code += "print('last words', file=sys.stderr, flush=True)\nos.abort()"
    outcome = process.ask(script(tmp_path, monkeypatch, code), timeout_s=60)
    assert outcome.answers == [{"a": 1}, {"b": 2}]
    assert (outcome.ended, outcome.said) == ("crashed (SIGABRT)", "last words")
    assert outcome.answer("b") == {"b": 2}
    assert outcome.answer("c") is None


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    outcome = process.ask(
        script(tmp_path, monkeypatch, "import time\ntell(a=1)\ntime.sleep(600)"), timeout_s=1
    )
    assert outcome.ended == "was still busy after 1 s"


def test_a_process_finds_modules_where_this_one_does(tmp_path, monkeypatch):
    outcome = process.ask(
        script(tmp_path, monkeypatch, "import sys\ntell(path=sys.path, argv=sys.argv[1:])"),
        "x",
        timeout_s=60,
    )
    assert outcome.answers == [{"path": sys.path, "argv": ["x"]}]
    assert outcome.ended == ""


def test_a_process_that_fails_says_with_what(tmp_path, monkeypatch):
    assert (
        process.ask(script(tmp_path, monkeypatch, "raise SystemExit(3)"), timeout_s=60).ended
        == "ended with status 3"
    )


def test_ctrl_c_ends_a_process_that_hangs(tmp_path):
    """At once, and with it: nobody waits for its end."""
    (tmp_path / "hangs.py").write_text(
        "import os, sys, time\nprint(os.getpid(), file=open('pid', 'w'), flush=True)\n"
        "time.sleep(600)"
    )
    code = (
        "from gluonlab.doctor import examination, __main__\n"
        "examination._gpus = examination._places = list\n"
        "examination._software = lambda: [('x', lambda: "
        "examination.mxnet_loads.ask('hangs', timeout_s=600))]\n__main__.main()"
    )
    doctor = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=clean_environment(path=[str(tmp_path)]), stderr=subprocess.PIPE,
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

"""gluonlab doctor: options in, lines or one JSON object out, and the exit status."""

import json
import os
import signal
import subprocess
import sys

import pytest
from support.processes import clean_environment
from support.waiting import wait_until

from gluonlab.doctor import __main__ as command
from gluonlab.doctor.__main__ import main
from gluonlab.doctor.findings import fault, ok, warning
from gluonlab.gpu import isolated_process


@pytest.fixture
def findings(monkeypatch):
    """Return an empty list; the checks find what the test adds to it."""
    results = []
    monkeypatch.setattr(command, "_software_checks", lambda: [("x", lambda: results)])
    for checks in ("_gpu_checks", "_host_checks"):
        monkeypatch.setattr(command, checks, list)
    return results


@pytest.mark.parametrize(
    ("finding", "status"),
    [(ok("x", "fine"), 0), (warning("x", "slow"), 0), (fault("x", "broken", "because", "mend it"), 1)],
)
def test_the_exit_status_is_1_for_a_fault_and_0_without(ended, findings, finding, status):
    findings.append(finding)
    assert ended(main)[0] == status
    code, out, err = ended(main, "--json")
    report = json.loads(out)
    assert (code, err, list(report)) == (status, "", ["status", "seconds", "findings"])
    assert (report["status"], report["findings"]) == (finding.status, [vars(finding)])


def test_a_check_that_breaks_leaves_the_others(ended, findings, monkeypatch):
    monkeypatch.setattr(command, "_host_checks", lambda: [("disk", lambda: [][0])])
    findings.append(ok("x", "fine"))
    code, out, err = ended(main)
    assert (code, err) == (0, "")
    assert "ok       x     fine" in out
    assert "warning  disk  this check itself failed: IndexError: list index out of range" in out


def test_network_asks_the_mirrors_that_it_is_given(serve, capsys, findings):
    url = serve({"a.gz": b"content"}).url
    with pytest.raises(SystemExit, match="1"):
        main(["--check-downloads", "--json"], obj=lambda: {"made-up": (f"{url}a.gz",), "gone": (f"{url}b.gz",)})
    report = json.loads(capsys.readouterr().out)
    statuses = [(finding["check"], finding["status"]) for finding in report["findings"]]
    assert statuses == [("network", "ok"), ("network", "fault")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--smok-test"], "unknown option '--smok-test': did you mean '--smoke-test'?"),
        (["now"], "unexpected 'now'"),
        (["--json=1"], "--json does not accept a value: write only --json"),
    ],
)
def test_mistakes_are_one_line(ended, arguments, words):
    code, out, err = ended(main, *arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and words in err


def test_help_and_a_missing_mxnet_need_no_mxnet(python):
    code = "import sys, gluonlab.doctor.__main__; print({'mxnet', 'numpy', 'requests'} & set(sys.modules))"
    assert python("-c", code).stdout.strip() == "set()"
    assert "--check-downloads" in python("-m", "gluonlab", "doctor", "--help").stdout


@pytest.fixture
def run_code(tmp_path, monkeypatch):
    """Return ``run_code(code, *arguments)``, which runs code in a process of its own."""

    def run(code, *arguments, timeout_s=60):
        (tmp_path / "isolated_code.py").write_text(f"from gluonlab.gpu.isolated_process import send_answer\n{code}")
        monkeypatch.syspath_prepend(str(tmp_path))
        return isolated_process.run_isolated("isolated_code", *arguments, timeout_s=timeout_s)

    return run


def test_a_process_is_listened_to_until_it_crashes(run_code):
    code = "import os, sys\nsend_answer(a=1)\nprint('no JSON')\nprint('[1]')\nsend_answer(b=2)\n"
    code += "print('last words', file=sys.stderr, flush=True)\nos.abort()"
    outcome = run_code(code)
    assert outcome == isolated_process.ProcessOutcome([{"a": 1}, {"b": 2}], "crashed (SIGABRT)", "last words")
    assert (outcome.first_answer("b"), outcome.first_answer("c")) == ({"b": 2}, None)


def test_a_process_that_hangs_is_ended_and_one_that_fails_has_its_status(run_code):
    assert run_code("import time\ntime.sleep(600)", timeout_s=1).failure == "was still running after 1 s"
    assert run_code("raise SystemExit(3)").failure == "exited with status 3"


def test_a_process_finds_modules_where_this_one_does(run_code):
    outcome = run_code("import sys\nsend_answer(path=sys.path, argv=sys.argv[1:])", "x")
    assert (outcome.answers, outcome.failure) == ([{"path": sys.path, "argv": ["x"]}], "")


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
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    doctor.send_signal(signal.SIGINT)
    _, error = doctor.communicate(timeout=60)
    assert (doctor.returncode, error.strip()) == (130, "interrupted")
    assert not os.path.exists(f"/proc/{int(pid.read_text())}")

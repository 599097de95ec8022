"""The command lists its measurements, refuses others, and leads to the developers' tools."""

import shlex
import sys

import pytest

from gluonlab.bench import __main__ as program


def test_the_command_lists_its_measurements_and_refuses_others(capsys, ended):
    program.main([])
    listed = capsys.readouterr().out
    assert "  links " in listed and "  strategies " in listed and "  frameworks " not in listed
    assert "  allreduce " not in listed  # the former name of another group
    status, _, error = ended(program.main, "strategy")
    assert (status, error.count("\n")) == (2, 1) and "did you mean 'strategies'?" in error


@pytest.mark.parametrize("name", program.TOOLS)
def test_a_former_name_leads_to_the_tool_of_a_checkout(ended, monkeypatch, tmp_path, name):
    tools = str(program.CHECKOUT / "tools")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != tools])
    status, out, _ = ended(program.main, name, "--help")
    folder = program.TOOLS[name].partition(".")[0]
    assert (status, out.split(" [OPTIONS]")[0]) == (0, f"Usage: python tools/{folder} {name}")
    assert tools in sys.path
    monkeypatch.setattr(program, "CHECKOUT", tmp_path)  # an installed gluonlab has no tools
    status, out, error = ended(program.main, name, "--help")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"run python tools/{folder} {name} in a checkout" in error


@pytest.mark.parametrize("name", program.RENAMED_TOOLS)
def test_an_old_name_of_a_tool_works_with_a_warning(ended, name):
    status, out, error = ended(program.main, name, "--help")
    new = program.RENAMED_TOOLS[name]
    assert (status, error) == (0, f"warning: gluonlab bench {name} is now gluonlab bench {new}\n")
    assert out.startswith(f"Usage: python tools/benchmarks {new} ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--devices cpu*2 --repeat 3 --sizes=1KiB", "bench --devices 'cpu*2' --iters 3 --bytes=1KiB"),
        ("--draw ring --devices 4 --out ring.html", "draw ring --devices 4 --out-file ring.html"),
        ("--devices 4 --draw=ring", "draw ring --devices 4"),
        ("--simulate p3.16xlarge --sizes 1KiB", "simulate p3.16xlarge --bytes 1KiB"),
        ("--json --synthesise m.json --out f.json", "solve m.json --json --out-file f.json"),
        ("--choose --simulate p3.8xlarge", "choose --simulate p3.8xlarge"),
        ("--help", "bench --help"),
    ],
)
def test_bench_allreduce_is_now_a_group_of_commands(capsys, monkeypatch, old, new):
    called = []
    monkeypatch.setattr("gluonlab.allreduce.main", called.append)
    program.main(["allreduce", *old.split()])
    out, error = capsys.readouterr()
    assert out == ""
    assert called == [shlex.split(new)]
    assert (
        error
        == f"warning: {shlex.join(['gluonlab', 'bench', 'allreduce', *old.split()])} is now gluonlab allreduce {new}\n"
    )

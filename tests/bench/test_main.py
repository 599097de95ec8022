"""The command lists its measurements, refuses others, and leads to the developers' tools."""

import sys

import pytest

from gluonlab.bench import __main__ as program


def test_the_command_lists_its_measurements_and_refuses_others(capsys, ended):
    program.main([])
    listed = capsys.readouterr().out
    assert "  allreduce " in listed and "  splits " in listed and "  peers " not in listed
    status, _, error = ended(program.main, "split")
    assert (status, error.count("\n")) == (2, 1) and "did you mean 'splits'?" in error


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

"""The commands: what they list and refuse, and where the measurements of developers have gone."""

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
    status, out, _ = ended(program.main, name, "--help")
    room = program.TOOLS[name].partition(".")[0]
    assert (status, out.split(" [OPTIONS]")[0]) == (0, f"Usage: python tools/{room} {name}")
    monkeypatch.setattr(program, "CHECKOUT", tmp_path)  # as where gluonlab is installed
    status, out, error = ended(program.main, name, "--help")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"run python tools/{room} {name} in a checkout" in error


def test_the_tools_are_found_by_their_folder(monkeypatch, ended):
    tools = str(program.CHECKOUT / "tools")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != tools])
    assert ended(program.main, "host", "--rounds", "0")[0] == 2
    assert tools in sys.path

"""Output of commands in tests."""

QUICK_OPTIONS = ["--model", "mlp", "--epochs", "1", "--gpus", "2"]


def call_run(words):
    """Call gluonlab run, or the command about runs whose name is the first word."""
    # These imports are here because conftest.py imports this module first.
    from gluonlab import run
    from gluonlab.cli.run_commands import COMMANDS

    name = words[0] if words else ""
    return COMMANDS[name].main(words[1:]) if name in COMMANDS else run.main(words)


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


def read_error_line(result, folder):
    """Check that a command printed one error line, with exit status 2, and wrote no file.

    Return the line. Warnings may precede it.
    """
    status, out, err = result
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert (status, out, len(lines), file_names(folder)) == (2, "", 1, []), err
    assert lines[0].startswith("error: ")
    return lines[0]

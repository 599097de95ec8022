"""The two scripts of the lifecycle configuration: put together, and made ready for the API.

    # after a change of build-env.sh or idle-stop.py
    python sagemaker/lifecycle.py write
    # its base64, for aws ... --on-start Content=...
    python sagemaker/lifecycle.py on-start GLUONLAB_IDLE_MINUTES=30

on-create.sh holds build-env.sh, on-start.sh holds idle-stop.py (closely set), and notebook.yaml
holds both scripts, so that what is uploaded is what lies here. `write` renews these copies, and
make check-sagemaker tells when they are old.
"""

import base64
import re
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LONGEST = 16384  # characters of base64, says the API
# and how long each may be
SETTINGS = {
    "GLUONLAB_REPOSITORY": 512,
    "GLUONLAB_BUCKET": 63,
    "GLUONLAB_IDLE_MINUTES": 5,
    "GLUONLAB_ENVIRONMENT": 512,
}
HELD = {  # what holds a copy: of what, between the line that begins it and the one that ends it
    "on-create.sh": [("build-env.sh", r"<<'END_OF_BUILD_ENV'\n", r"^END_OF_BUILD_ENV\n", "")],
    "on-start.sh": [("idle-stop.py", r"<<'END_OF_IDLE_STOP'\n", r"^END_OF_IDLE_STOP\n", "")],
    "notebook.yaml": [
        ("on-create.sh", r"# on-create\.sh:\n +- \|\n", r"^ +# end of on-create\.sh\n", 18 * " "),
        ("on-start.sh", r"# on-start\.sh:\n +- \|\n", r"^ +# end of on-start\.sh\n", 18 * " "),
    ],
}


def written(name, folder=HERE):
    """The file with its copies renewed from ``folder``."""
    text = (folder / name).read_text(encoding="utf-8")
    for part, begins, ends, margin in HELD[name]:
        copy = (
            written(part, folder) if part in HELD else (folder / part).read_text(encoding="utf-8")
        )
        if part.endswith(".py"):
            copy = dense(copy)
        copy = re.sub(r"^(?=.)", margin, copy, flags=re.M)
        text, times = re.subn(
            f"({begins})(?:.*?)({ends})",
            lambda m, copy=copy: m[1] + copy + m[2],
            text,
            flags=re.S | re.M,
        )
        if times != 1:
            raise ValueError(f"{name}: the lines around its copy of {part} are gone")
    return text


def dense(program):
    """A Python program with indents of one space, and without empty lines, lines of comment alone
    and docstrings but its own: a script has to be short.
    """
    bare = re.sub(r'^ +"""(?:.|\n)*?"""\n', "", program, flags=re.M)
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in bare.split("\n")]
    return "".join(
        f"{' ' * (indent // 4)}{line}\n" for indent, line in lines if line and line[0] != "#"
    )


def script(name, settings=None):
    """The script "on-create" or "on-start" with its settings, {one of SETTINGS: value}, on top."""
    unknown = sorted(set(settings or {}) - set(SETTINGS))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]}: choose {', '.join(SETTINGS)}")
    for key, value in (settings or {}).items():
        if len(str(value)) > SETTINGS[key]:
            raise ValueError(
                f"{key} has {len(str(value))} characters: give at most {SETTINGS[key]}"
            )
    first, rest = (HERE / f"{name}.sh").read_text(encoding="utf-8").split("\n", 1)
    lines = [
        f"export {key}={shlex.quote(str(value))}" for key, value in sorted((settings or {}).items())
    ]
    return "\n".join([first, *lines, rest])


def faults(text):
    """What would make AWS, or bash on the notebook, stumble over this script."""
    found = []
    if "\r" in text:
        found.append(
            "lines end in CRLF: bash would look for commands that end in a carriage return; "
            "save it with LF"
        )
    if not text.isascii():
        found.append("it is not ASCII, which AWS's console cannot encode")
    if not text.startswith("#!/bin/bash\n"):
        found.append("its first line is not #!/bin/bash")
    length = len(base64.b64encode(text.encode("utf-8")))
    if length > LONGEST:
        found.append(f"its base64 has {length} characters and the API takes {LONGEST}")
    return found


def content(text):
    """The base64 of a script, on one line, as the API's ``Content``.

    Raises ValueError for a script with faults.
    """
    found = faults(text)
    if found:
        raise ValueError("; ".join(found))
    return base64.b64encode(text.encode("utf-8")).decode("ascii")


def main(arguments):
    """What the docstring of the file says."""
    if arguments == ["write"]:
        for name in HELD:
            text = written(name)
            with open(HERE / name, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        return
    if (
        not arguments
        or arguments[0] not in ("on-create", "on-start")
        or not all("=" in one for one in arguments[1:])
    ):
        sys.exit(
            "error: give write, or on-create or on-start with settings: "
            "python sagemaker/lifecycle.py on-start NAME=VALUE ..."
        )
    try:
        print(content(script(arguments[0], dict(one.split("=", 1) for one in arguments[1:]))))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])

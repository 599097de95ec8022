"""Builds the two scripts of the lifecycle configuration, and encodes them for the API.

    # after a change of build-env.sh or idle-stop.py
    python sagemaker/lifecycle.py write
    # its base64, for aws ... --on-start Content=...
    python sagemaker/lifecycle.py on-start GLUONLAB_IDLE_MINUTES=30

on-create.sh contains a copy of build-env.sh, on-start.sh a minified copy of idle-stop.py, and
notebook.yaml copies of both scripts. `write` updates the copies. make check-sagemaker fails if a
copy is out of date.
"""

import base64
import re
import shlex
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MAX_CONTENT_LENGTH = 16384  # characters of base64, a limit of the API
# maximum length of the value of each setting
SETTINGS = {"GLUONLAB_REPOSITORY": 512, "GLUONLAB_BUCKET": 63, "GLUONLAB_IDLE_MINUTES": 5, "GLUONLAB_ENVIRONMENT": 512}
# file: [(copied file, pattern of the line before the copy, pattern of the line after it, indent)]
EMBEDDED_COPIES = {
    "on-create.sh": [("build-env.sh", r"<<'END_OF_BUILD_ENV'\n", r"^END_OF_BUILD_ENV\n", "")],
    "on-start.sh": [("idle-stop.py", r"<<'END_OF_IDLE_STOP'\n", r"^END_OF_IDLE_STOP\n", "")],
    "notebook.yaml": [
        ("on-create.sh", r"# on-create\.sh:\n +- \|\n", r"^ +# end of on-create\.sh\n", 18 * " "),
        ("on-start.sh", r"# on-start\.sh:\n +- \|\n", r"^ +# end of on-start\.sh\n", 18 * " "),
    ],
}


def render_file(name, folder=FOLDER):
    """Return the text of a file with its copies updated from ``folder``."""
    text = (folder / name).read_text(encoding="utf-8")
    for source, start, end, indent in EMBEDDED_COPIES[name]:
        copy = (
            render_file(source, folder) if source in EMBEDDED_COPIES else (folder / source).read_text(encoding="utf-8")
        )
        if source.endswith(".py"):
            copy = minify(copy)
        copy = re.sub(r"^(?=.)", indent, copy, flags=re.M)
        text, count = re.subn(
            f"({start})(?:.*?)({end})", lambda match, copy=copy: match[1] + copy + match[2], text, flags=re.S | re.M
        )
        if count != 1:
            raise ValueError(f"{name}: the marker lines around its copy of {source} are missing")
    return text


def minify(program):
    """Shorten a Python program for the API's limit.

    Indents become one space. Empty lines, lines of comments and inner docstrings are removed.
    """
    without_docstrings = re.sub(r'^ +"""(?:.|\n)*?"""\n', "", program, flags=re.M)
    lines = [line for line in without_docstrings.split("\n") if line.strip()]
    return "".join(
        f"{' ' * ((len(line) - len(line.lstrip())) // 4)}{line.strip()}\n" for line in lines if line.lstrip()[0] != "#"
    )


def build_script(name, settings=None):
    """Return the script "on-create" or "on-start", with ``settings`` exported in its first lines.

    Raises ValueError for a name that is not in SETTINGS, or a value that is too long.
    """
    unknown = sorted(set(settings or {}) - set(SETTINGS))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]}: choose {', '.join(SETTINGS)}")
    for key, value in (settings or {}).items():
        if len(str(value)) > SETTINGS[key]:
            raise ValueError(f"{key} has {len(str(value))} characters: use at most {SETTINGS[key]}")
    shebang, body = (FOLDER / f"{name}.sh").read_text(encoding="utf-8").split("\n", 1)
    lines = [f"export {key}={shlex.quote(str(value))}" for key, value in sorted((settings or {}).items())]
    return "\n".join([shebang, *lines, body])


def find_faults(text):
    """Return the reasons for which AWS, or bash on the notebook, would refuse this script."""
    faults = []
    if "\r" in text:
        faults.append("its lines end in CRLF, which bash cannot run: save it with LF")
    if not text.isascii():
        faults.append("it contains characters that are not ASCII, which AWS's console cannot encode: remove them")
    if not text.startswith("#!/bin/bash\n"):
        faults.append("its first line is not #!/bin/bash")
    length = len(base64.b64encode(text.encode("utf-8")))
    if length > MAX_CONTENT_LENGTH:
        faults.append(
            f"its base64 has {length} characters, but the API allows {MAX_CONTENT_LENGTH}: shorten the script"
        )
    return faults


def encode_script(text):
    """Return the base64 of a script on one line; raise ValueError for a script with faults."""
    faults = find_faults(text)
    if faults:
        raise ValueError("; ".join(faults))
    return base64.b64encode(text.encode("utf-8")).decode("ascii")


def main(arguments):
    """Write the files, or print a script in base64."""
    if arguments == ["write"]:
        for name in EMBEDDED_COPIES:
            text = render_file(name)
            with open(FOLDER / name, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        return
    if (
        not arguments
        or arguments[0] not in ("on-create", "on-start")
        or not all("=" in setting for setting in arguments[1:])
    ):
        sys.exit(
            "error: pass write, or on-create or on-start with settings: python sagemaker/lifecycle.py on-start "
            "NAME=VALUE ..."
        )
    try:
        settings = dict(setting.split("=", 1) for setting in arguments[1:])
        print(encode_script(build_script(arguments[0], settings)))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])

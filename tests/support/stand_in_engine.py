"""A fake container engine, which replaces docker or podman.

It accepts the options of ``run`` that gluonlab uses, and runs the command as a separate process,
which outlives the engine like a container. Its folder, named by STAND_IN, contains
``images/NAME.py``, which replaces the command of an image; ``calls``, a JSON list per line; and for
each container a file with the process id.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

FLAGS = {"--rm", "--interactive", "--read-only"}
WITH_VALUE = {
    "--name", "--pull", "--network", "--cap-drop", "--security-opt", "--user", "--log-driver",
    "--memory", "--memory-swap", "--pids-limit", "--cpus", "--shm-size", "--ulimit", "--tmpfs",
    "--volume", "--env", "--workdir", "--entrypoint",
}  # fmt: skip


def install_fake_engine(folder, monkeypatch, name="docker"):
    """Make PATH contain only the fake engine; return its folder."""
    (folder / "bin").mkdir(parents=True)
    (folder / "images").mkdir()
    script = folder / "bin" / name
    script.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text(encoding='utf-8')}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("STAND_IN", str(folder))
    return folder


def read_calls(folder):
    """Return the arguments of every call so far."""
    lines = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def exit_with_error(text, status=125):
    print(f"docker: {text}", file=sys.stderr)
    sys.exit(status)


def main(words):
    folder = Path(os.environ["STAND_IN"])
    with (folder / "calls").open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")
    if words[:2] == ["rm", "--force"]:
        os.killpg(int((folder / words[2]).read_text()), 9)
        return
    if words[0] != "run":
        exit_with_error(f"unknown command {words[0]}")
    options, words = {}, words[1:]
    while words[0].startswith("-"):
        name = words.pop(0)
        if name not in FLAGS | WITH_VALUE:
            exit_with_error(f"unknown flag: {name}")
        options.setdefault(name, []).append(words.pop(0) if name in WITH_VALUE else "")
    image, *command = words
    own = folder / "images" / f"{image}.py"
    environment = dict(value.split("=", 1) for value in options["--env"])
    mounted, place, _ = options["--volume"][0].split(":")
    if own.exists():
        command = [sys.executable, "-IS", str(own)]
    elif options["--entrypoint"] == ["python"] and place == "/submission":
        command = [sys.executable, *command, mounted]
        environment.update(PYTHONPATH=os.environ["PYTHONPATH"], PATH="")
    else:
        exit_with_error(f"No such image: {image}")
    run = subprocess.Popen(command, env=environment, cwd="/tmp", start_new_session=True)
    (folder / options["--name"][0]).write_text(str(run.pid))
    status = run.wait()
    sys.exit(128 - status if status < 0 else status)


if __name__ == "__main__":
    main(sys.argv[1:])

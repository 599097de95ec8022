"""A notebook without AWS: the real scripts, in a folder that stands for its /."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

from support.waiting import LIMIT_S, wait_until

SAGEMAKER = Path(__file__).resolve().parent.parent.parent / "sagemaker"

RESOURCE_METADATA = {  # what a notebook is told of itself
    "ResourceName": "mine",
    "ResourceArn": "arn:aws:sagemaker:eu-west-1:111122223333:notebook-instance/mine",
}


SUDO = """\
[ "$1 $2" = "-u ec2-user" ] || exit 9
shift 2
[ "$1" != -i ] || shift
exec env -i HOME="{root}/home/ec2-user" PATH="$PATH" "$@"
"""

CONDA = """\
while [ -e "{root}/wait" ]; do sleep 0.1; done
[ ! -e "{root}/conda-fails" ] || {{ echo "CondaHTTPError: no connection" >&2; exit 3; }}
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/bin"
cp "{root}/python" "$2/bin/python"
"""

PYTHON = """\
case "$*" in
  *make_venv.py*)
    [ ! -e "{root}/install-fails" ] || {{ echo "no matching distribution" >&2; exit 1; }}
    env >"{root}/installed-with" ;;
  *"ipykernel install"*)
    place=$HOME/.local
    while [ $# -gt 0 ]; do
      case $1 in --prefix=*) place=${{1#*=}} ;; --name) name=$2 ;; esac
      shift
    done
    mkdir -p "$place/share/jupyter/kernels/$name" ;;
  *"gluonlab labs "*) mkdir -p "$4" && cp -n "$HOME/SageMaker/gluonlab-source/labs/en/"* "$4" ;;
esac
"""


class Notebook:
    """A folder that stands for a notebook's /: the real scripts run in it, with nothing of the
    test's own environment.

    sudo, systemctl, conda, aws, nvidia-smi, and the Python that conda makes are shims that note how
    they were called.
    """

    def __init__(self, folder):
        self.root, self.shims, self.calls_file = folder / "root", folder / "shims", folder / "calls"
        self.shown = self.root / "home" / "ec2-user" / "SageMaker"
        self.shown.mkdir(parents=True)
        self.shims.mkdir()
        self.calls_file.touch()
        self.add_shim("sudo", SUDO)
        self.add_shim("conda", CONDA)
        self.add_shim("systemctl", "")
        self.add_shim("aws", 'tar -cz -C "{root}/bucket" .')
        self.add_shim("nvidia-smi", "exit 9")
        self.add_shim("python", PYTHON, self.root / "python")
        self.checkout = self.make_checkout(folder / "origin")
        subprocess.run(["git", "init", "--quiet", str(self.checkout)], check=True, timeout=LIMIT_S)
        self.commit()

    def commit(self):
        """Commit the files in the folder of the repository."""
        author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
        for arguments in (["add", "."], [*author, "commit", "--quiet", "-m", "made for a test"]):
            subprocess.run(["git", "-C", str(self.checkout), *arguments], check=True, timeout=LIMIT_S)

    def set_gpus(self, *names, nvidia_smi=None):
        """Its PCI bus has these GPUs, beside other devices; nvidia-smi lists them, or does what is
        given.
        """
        devices = self.root / "sys/bus/pci/devices"
        shutil.rmtree(str(devices), ignore_errors=True)
        others = {"0000:00:00.0": ("0x8086", "0x060000"), "0000:00:1f.0": ("0x10de", "0x068000")}
        cards = {f"0000:00:{16 + n:x}.0": ("0x10de", "0x030200") for n in range(len(names))}
        for address, about in {**others, **cards}.items():
            (devices / address).mkdir(parents=True)
            for name, value in zip(("vendor", "class"), about):
                (devices / address / name).write_text(value + "\n", encoding="utf-8")
        lists = "".join(f'echo "GPU {n}: {name}"\n' for n, name in enumerate(names))
        self.add_shim("nvidia-smi", nvidia_smi or lists or "exit 9")

    def add_shim(self, name, body, path=None):
        path = path or self.shims / name
        note = f'printf "%s\\n" "{name} $*" >>"{self.calls_file}"\n'
        path.write_text("#!/bin/bash\n" + note + body.format(root=self.root), encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @staticmethod
    def make_checkout(folder):
        """The files of gluonlab that the build looks at."""
        for name in ("setup.py", "tools/make_venv.py", "labs/en/01.ipynb"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("# " + name, encoding="utf-8")
        return folder

    def root_command(self, *command):
        """The command that runs one in the notebook, with nothing of this environment."""
        kept = [f"PATH={self.shims}:{os.defpath}", f"DESTDIR={self.root}"]
        return ["env", "-i", *kept, *command]

    def start(self, name="on-start", **settings):
        """Runs the script to its end, as SageMaker does; what it began in the background may go on.

        Returns what it printed.
        """
        import lifecycle

        settings = {"GLUONLAB_REPOSITORY": str(self.checkout), **settings}
        text = lifecycle.build_script(name, settings)
        script = subprocess.Popen(
            self.root_command("bash", "-s"), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        output, complaints = script.communicate(text, timeout=LIMIT_S)
        assert script.returncode == 0, complaints
        self.group = script.pid
        return output

    def create(self, **settings):
        """The first start of a new notebook."""
        self.start("on-create", **settings)
        return self.start(**settings)

    def create_and_wait(self, **settings):
        """Start a new notebook for the first time, and wait until it shows READY."""
        self.create(**settings)
        return self.wait_for_marker("READY")

    def start_and_wait(self, **settings):
        """Start the notebook again, and wait until it shows READY."""
        self.start(**settings)
        return self.wait_for_marker("READY")

    def build_or_fail(self, *arguments):
        """Run build-env.sh, which must succeed; return its output."""
        status, output = self.build(*arguments)
        assert status == 0, output
        return output

    def build(self, *arguments):
        """Run build-env.sh as in a terminal; return its status and its output."""
        home = self.root / "home/ec2-user"
        script = home / "SageMaker/.gluonlab/build-env.sh"
        process = subprocess.run(
            self.root_command("env", f"HOME={home}", "bash", str(script), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=LIMIT_S,
        )
        return process.returncode, process.stdout

    @property
    def markers(self):
        return sorted(path.name for path in self.shown.glob("gluonlab-[A-Z]*.txt"))

    def wait_for_marker(self, state):
        """Waits until the notebook shows this state and no other; returns what its file says."""
        expected, building = [f"gluonlab-{state}.txt"], state == "BUILDING"
        # to look at the lock takes it for a moment, so the marker comes first
        wait_until(lambda: self.markers == expected and self.is_locked() is building)
        return (self.shown / f"gluonlab-{state}.txt").read_text(encoding="utf-8")

    def is_locked(self):
        """Return whether a build is running."""
        lock = self.shown / ".gluonlab" / "lock"
        tried = subprocess.run(["flock", "--nonblock", str(lock), "true"], timeout=LIMIT_S)
        return tried.returncode != 0

    def recorded_calls(self, beginning=""):
        lines = self.calls_file.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith(beginning)]


class Namespace(Notebook):
    """The same at the very paths of a notebook, in a mount namespace of its own: there /home, /opt,
    /etc and /sys are those of the folder, and no DESTDIR is given.
    """

    UNSHARE = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "-r", "--mount")
    ENTER = """\
for folder in home opt etc sys; do mount --bind "$0/$folder" "/$folder" || exit; done
exec env -i "$@"
"""

    def __init__(self, folder):
        super().__init__(folder)
        for name in ("opt", "sys", "etc"):
            (self.root / name).mkdir()
        for name in ("passwd", "group", "ld.so.cache", "nsswitch.conf"):
            if (Path("/etc") / name).exists():
                shutil.copy(f"/etc/{name}", str(self.root / "etc"))
        self.add_shim("sudo", SUDO.replace("{root}", ""))

    @classmethod
    def is_possible(cls):
        """Return whether users of this machine may create such namespaces."""
        tried = [*cls.UNSHARE, "mount", "--bind", "/sys", "/sys"]
        return subprocess.run(tried, stderr=subprocess.DEVNULL, timeout=LIMIT_S).returncode == 0

    def root_command(self, *command):
        path = f"PATH={self.shims}:{os.defpath}"
        inside = [str(item).replace(f"{self.root}/home", "/home") for item in command]
        return [*self.UNSHARE, "bash", "-c", self.ENTER, str(self.root), path, *inside]


class Quiet:
    """A source without activity, in place of idle-stop.py's processes, GPUs or network."""

    def find_activity(self, now=None):
        return None

"""Stops the SageMaker notebook that it runs on when nobody has used it for some time.

Used means, since the last look: a kernel is busy or has run something; a terminal was written to or
wrote something; a process of this user computed; a GPU worked; the network carried much; or the
heartbeat file was touched, which is what a job does that only waits:
touch ~/SageMaker/.gluonlab/heartbeat

Time is that since the start of the machine, and of all other times only that they changed counts:
setting the clock does nothing. on-start.sh runs this as ec2-user with the system's Python, so it
keeps to the standard library of Python 3.7.
"""

import argparse
import http.client
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.parse
import urllib.request

METADATA = "/opt/ml/metadata/resource-metadata.json"
HEARTBEAT = "~/SageMaker/.gluonlab/heartbeat"
# of one core: an idle kernel or JupyterLab in a browser takes 0.01, a job that computes takes 1
BUSY_CPU = 0.05
BUSY_GPU = 5  # per cent
# bytes/s, both ways, on average between two looks. What the machine does by itself stays below: its
# agents report little, and JupyterLab in a browser asks every 10 s for kernels (1 kB), terminals
# (1 kB) and the open folder, of which 1000 files are 300 kB: 30 kB/s. Of downloads only those below
# 0.8 Mbit/s stay below, too.
BUSY_NETWORK = 100e3


class Jupyter:
    """What the server of this machine says of kernels and terminals."""

    def __init__(self, url, token=""):
        if urllib.parse.urlsplit(url).hostname not in ("localhost", "127.0.0.1"):
            raise SystemExit(
                "error: --url %s: give an address of this machine, such as https://localhost:8443"
                % url
            )
        self.url, self.token, self.used = url.rstrip("/"), token, {"kernels": [], "terminals": []}
        # The certificate is the server's own, and the way leads through this machine alone.
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
        self.opener = urllib.request.build_opener(*handlers)

    def get(self, name):
        headers = {"Authorization": "token " + self.token} if self.token else {}
        request = urllib.request.Request(self.url + "/api/" + name, headers=headers)
        with self.opener.open(request, timeout=20) as answer:
            return json.loads(answer.read().decode("utf-8"))

    def look(self):
        """(why it is busy or None, what changes when it is used)."""
        busy = []
        for what in sorted(self.used):
            try:
                found = [dict(one) for one in self.get(what)]
            except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
                # It starts, has ended, or has none of these; processes and GPUs are seen without
                # it. What was seen last stays: a server that answers now and then is no news.
                print("Jupyter does not answer about %s: %s" % (what, error), flush=True)
                continue
            busy += [one.get("name") for one in found if one.get("execution_state") == "busy"]
            self.used[what] = sorted(
                [(one.get("id") or one.get("name"), one.get("last_activity")) for one in found],
                key=str,
            )
        return ("kernel %s is busy" % busy[0] if busy else None), list(self.used.values())


class Processes:
    """The processor time of this user's processes."""

    def __init__(self, proc="/proc"):
        self.proc, self.before, self.since = proc, {}, None

    def seconds(self):
        """{(pid, start): (processor seconds, name)}"""
        found, tick = {}, os.sysconf("SC_CLK_TCK")
        for pid in filter(str.isdigit, os.listdir(self.proc)):
            try:
                if (
                    os.stat(os.path.join(self.proc, pid)).st_uid != os.getuid()
                    or int(pid) == os.getpid()
                ):
                    continue
                with open(os.path.join(self.proc, pid, "stat")) as stat:
                    name, _, rest = stat.read().partition("(")[2].rpartition(")")
            except (OSError, ValueError):
                continue  # it has just ended
            fields = rest.split()
            # With those of its children that have ended: a job may be a thousand short processes.
            found[pid, fields[19]] = sum(map(int, fields[11:15])) / tick, name
        return found

    def look(self, now):
        seconds, lasted = self.seconds(), now - self.since if self.since is not None else 0.0
        used = {
            one: total - self.before.get(one, (0.0, ""))[0] for one, (total, _) in seconds.items()
        }
        self.before, self.since = seconds, now
        if not used or lasted <= 0:
            return None
        most = max(used, key=used.get)
        if used[most] < BUSY_CPU * lasted:
            return None
        what = most[0], seconds[most][1], used[most], lasted
        return "process %s (%s) computed for %.1f of %.0f s" % what


class GPUs:
    """What nvidia-smi says. Where a driver hangs, so does it, and may not even be killed: then it
    is neither waited for nor asked again before it has ended.
    """

    def __init__(self, patience=30):
        self.patience, self.asked = patience, None

    def look(self):
        if self.asked is not None and self.asked.poll() is None:
            return None
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            self.asked = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            answer = self.asked.communicate(timeout=self.patience)[0]
        except OSError:
            return None
        except subprocess.TimeoutExpired:
            print("nvidia-smi does not answer: no GPU counts as used", flush=True)
            self.asked.kill()
            return None
        for number, line in enumerate(answer.decode("ascii", "replace").split("\n")):
            if line.strip().isdigit() and int(line) >= BUSY_GPU:
                return "GPU %d works at %s %%" % (number, line.strip())
        return None


class Network:
    """The bytes that this machine's network has carried."""

    def __init__(self, path="/proc/net/dev"):
        self.path, self.before, self.since = path, None, None

    def bytes(self):
        """{interface: bytes received and sent}; without lo, which leads nowhere."""
        try:
            with open(self.path) as file:
                lines = [line.partition(":") for line in file if ":" in line]
            counts = {name.strip(): rest.split() for name, _, rest in lines}
            return {name: int(of[0]) + int(of[8]) for name, of in counts.items() if name != "lo"}
        except (OSError, ValueError, IndexError):
            return {}

    def look(self, now):
        before, since = self.before, self.since
        self.before, self.since = self.bytes(), now
        if before is None or now <= since:
            return None
        # the busiest alone: what a bridge of containers carries passes the machine's card again
        most = max([total - before.get(name, 0) for name, total in self.before.items()] + [0])
        if most < BUSY_NETWORK * (now - since):
            return None
        return "the network carried %.1f MB in %.0f s" % (most / 1e6, now - since)


def touched(path):
    try:
        return os.stat(os.path.expanduser(path)).st_mtime_ns
    except OSError:
        return None


class Watch:
    """Counts the time without use; each `look` returns the seconds that have gone by so far, and
    why the count began anew.
    """

    def __init__(self, jupyter, processes, gpus, network, heartbeat=HEARTBEAT):
        self.jupyter, self.processes = jupyter, processes
        self.gpus, self.network, self.heartbeat = gpus, network, heartbeat
        self.seen, self.idle_since = None, None

    def look(self, now):
        busy, used = self.jupyter.look()
        seen = {
            "a kernel or terminal was used": used,
            "the heartbeat was touched": touched(self.heartbeat),
        }
        changed = [what for what in seen if self.seen is not None and seen[what] != self.seen[what]]
        # each is asked every time: they count from look to look
        found = [busy, self.processes.look(now), self.gpus.look(), self.network.look(now)] + changed
        why = next(filter(None, found), None)
        if why or self.idle_since is None:
            self.idle_since = now
        self.seen = seen
        return now - self.idle_since, why


def stop():
    with open(METADATA) as file:
        metadata = json.load(file)
    name, region = metadata["ResourceName"], metadata["ResourceArn"].split(":")[3]
    aws = shutil.which("aws") or "aws"
    command = [aws, "sagemaker", "stop-notebook-instance"]
    command += ["--region", region, "--notebook-instance-name", name]
    # The role of the notebook may stop it. Whom its user has set up for the command line comes
    # second: it may be somebody else.
    role = dict(os.environ, AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    if subprocess.run(command, env=role, timeout=120).returncode:
        subprocess.run(command, check=True, timeout=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--minutes", type=float, required=True, help="stop after so long without use"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=60,
        metavar="SECONDS",
        help="between two looks (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        default="https://localhost:8443",
        help="where Jupyter answers (default: %(default)s)",
    )
    given = parser.parse_args()
    jupyter = Jupyter(given.url, os.environ.get("JUPYTER_TOKEN", ""))
    watch = Watch(jupyter, Processes(), GPUs(), Network())
    while True:
        idle, why = watch.look(time.monotonic())
        print(
            "idle for %d of %g minutes%s" % (idle // 60, given.minutes, ": " + why if why else ""),
            flush=True,
        )
        if idle >= given.minutes * 60:
            try:
                stop()
            except (OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
                print("the notebook cannot be stopped, and is tried again: %s" % error, flush=True)
        time.sleep(given.every)


if __name__ == "__main__":
    main()

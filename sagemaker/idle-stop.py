"""Stops the SageMaker notebook that it runs on after a time without use.

Signs of use: a kernel is busy or ran code; a terminal had input or output; a process of this user,
a GPU or the network worked; the heartbeat file was touched.
A job that only waits needs: touch ~/SageMaker/.gluonlab/heartbeat

Setting the clock has no effect. on-start.sh runs this as ec2-user with the system's Python 3.7.
"""

# Use only the standard library of Python 3.7; lifecycle.py removes comments like this one.
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
# Share of one core. An idle kernel, or JupyterLab in a browser, takes 0.01; a job takes about 1.
BUSY_CPU = 0.05
BUSY_GPU = 5  # percent
# Bytes/s in both directions, on average between two checks. An idle machine stays below: its agents
# report little, and JupyterLab in a browser asks every 10 s for kernels (1 kB), terminals (1 kB)
# and the open folder, 300 kB for 1000 files, so 30 kB/s. Downloads below 0.8 Mbit/s go unnoticed.
BUSY_NETWORK = 100e3


class JupyterClient:
    """The client of this machine's Jupyter server."""

    def __init__(self, url, token=""):
        if urllib.parse.urlsplit(url).hostname not in ("localhost", "127.0.0.1"):
            raise SystemExit(
                "error: --url %s is not on this machine: use an address such as https://localhost:8443" % url
            )
        self.url, self.token = url.rstrip("/"), token
        self.last_use = {"kernels": [], "terminals": []}
        # The server's certificate is self-signed, and the connection does not leave this machine.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        self.opener = urllib.request.build_opener(*handlers)

    def get_json(self, name):
        headers = {"Authorization": "token " + self.token} if self.token else {}
        request = urllib.request.Request(self.url + "/api/" + name, headers=headers)
        with self.opener.open(request, timeout=20) as response:
            return json.loads(response.read().decode("utf-8"))

    def read_state(self):
        """Return a description of a busy kernel, or None, and a value that changes with use."""
        busy = []
        for kind in sorted(self.last_use):
            try:
                items = [dict(item) for item in self.get_json(kind)]
            except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
                # The server is starting, has ended, or has no terminals. The last state is kept:
                # an answer that is missing now and then is not a sign of use.
                print("cannot read %s from Jupyter: %s" % (kind, error), flush=True)
                continue
            busy += [item.get("name") for item in items if item.get("execution_state") == "busy"]
            self.last_use[kind] = sorted(
                [(item.get("id") or item.get("name"), item.get("last_activity")) for item in items], key=str
            )
        return ("kernel %s is busy" % busy[0] if busy else None), list(self.last_use.values())


class ProcessActivity:
    """The processor time of this user's processes."""

    def __init__(self, proc="/proc"):
        self.proc, self.previous, self.checked_at = proc, {}, None

    def cpu_seconds(self):
        """Return processor seconds and name of each process, by (pid, start time)."""
        processes, tick = {}, os.sysconf("SC_CLK_TCK")
        for pid in filter(str.isdigit, os.listdir(self.proc)):
            try:
                if os.stat(os.path.join(self.proc, pid)).st_uid != os.getuid() or int(pid) == os.getpid():
                    continue
                with open(os.path.join(self.proc, pid, "stat")) as stat:
                    name, _, rest = stat.read().partition("(")[2].rpartition(")")
            except (OSError, ValueError):
                continue  # it has just ended
            fields = rest.split()
            # The sum includes children that have ended: a job may be a thousand short processes.
            processes[pid, fields[19]] = sum(map(int, fields[11:15])) / tick, name
        return processes

    def find_activity(self, now):
        """Return a description of the busiest process since the last call, or None."""
        processes = self.cpu_seconds()
        elapsed = now - self.checked_at if self.checked_at is not None else 0.0
        used = {key: total - self.previous.get(key, (0.0, ""))[0] for key, (total, _) in processes.items()}
        self.previous, self.checked_at = processes, now
        if not used or elapsed <= 0:
            return None
        busiest = max(used, key=used.get)
        if used[busiest] < BUSY_CPU * elapsed:
            return None
        values = busiest[0], processes[busiest][1], used[busiest], elapsed
        return "process %s (%s) computed for %.1f of %.0f s" % values


class GPUActivity:
    """The load of the GPUs, as nvidia-smi prints it."""

    def __init__(self, timeout=30):
        self.timeout, self.process = timeout, None

    def find_activity(self):
        """Return a description of a busy GPU, or None."""
        # If a driver hangs, nvidia-smi hangs too and may ignore signals: do not start another.
        if self.process is not None and self.process.poll() is None:
            return None
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            self.process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            output = self.process.communicate(timeout=self.timeout)[0]
        except OSError:
            return None
        except subprocess.TimeoutExpired:
            print("nvidia-smi does not answer: GPUs count as idle", flush=True)
            self.process.kill()
            return None
        for number, line in enumerate(output.decode("ascii", "replace").split("\n")):
            if line.strip().isdigit() and int(line) >= BUSY_GPU:
                return "GPU %d works at %s %%" % (number, line.strip())
        return None


class NetworkActivity:
    """The traffic of this machine's network."""

    def __init__(self, path="/proc/net/dev"):
        self.path, self.previous, self.checked_at = path, None, None

    def byte_counts(self):
        """Return the bytes received and sent by each interface except the loopback."""
        try:
            with open(self.path) as file:
                lines = [line.partition(":") for line in file if ":" in line]
            counts = {name.strip(): rest.split() for name, _, rest in lines}
            return {name: int(n[0]) + int(n[8]) for name, n in counts.items() if name != "lo"}
        except (OSError, ValueError, IndexError):
            return {}

    def find_activity(self, now):
        """Return a description of the traffic since the last call, or None if it is little."""
        previous, start = self.previous, self.checked_at
        self.previous, self.checked_at = self.byte_counts(), now
        if previous is None or now <= start:
            return None
        # Only the busiest interface: traffic of containers passes a bridge and the network card.
        most = max([total - previous.get(name, 0) for name, total in self.previous.items()] + [0])
        if most < BUSY_NETWORK * (now - start):
            return None
        return "the network transferred %.1f MB in %.0f s" % (most / 1e6, now - start)


def modification_time(path):
    """Return the modification time of a file in ns, or None if there is no file."""
    try:
        return os.stat(os.path.expanduser(path)).st_mtime_ns
    except OSError:
        return None


class IdleTimer:
    """The time without use, according to Jupyter, processes, GPUs, network and heartbeat."""

    def __init__(self, jupyter, processes, gpus, network, heartbeat=HEARTBEAT):
        self.jupyter, self.processes = jupyter, processes
        self.gpus, self.network, self.heartbeat = gpus, network, heartbeat
        self.previous, self.idle_since = None, None

    def update(self, now):
        """Return the seconds without use until ``now``, and the reason for a restart or None."""
        busy, last_use = self.jupyter.read_state()
        state = {
            "a kernel or terminal was used": last_use,
            "the heartbeat was touched": modification_time(self.heartbeat),
        }
        # All of them are called in each update, because each counts since its last call.
        reasons = [busy, self.processes.find_activity(now)]
        reasons += [self.gpus.find_activity(), self.network.find_activity(now)]
        if self.previous is not None:
            reasons += [key for key in state if state[key] != self.previous[key]]
        reason = next(filter(None, reasons), None)
        if reason or self.idle_since is None:
            self.idle_since = now
        self.previous = state
        return now - self.idle_since, reason


def stop_notebook():
    """Stop this notebook with the AWS command line."""
    with open(METADATA) as file:
        metadata = json.load(file)
    name, region = metadata["ResourceName"], metadata["ResourceArn"].split(":")[3]
    aws = shutil.which("aws") or "aws"
    command = [aws, "sagemaker", "stop-notebook-instance"]
    command += ["--region", region, "--notebook-instance-name", name]
    # The notebook's role may stop it. Credentials that the user has configured come second, because
    # they may belong to somebody without that permission.
    role = dict(os.environ, AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    if subprocess.run(command, env=role, timeout=120).returncode:
        subprocess.run(command, check=True, timeout=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, required=True, help="stop after this many minutes without use")
    parser.add_argument(
        "--every", type=float, default=60, metavar="SECONDS", help="seconds between two checks (default: %(default)s)"
    )
    parser.add_argument("--url", default="https://localhost:8443", help="address of Jupyter (default: %(default)s)")
    options = parser.parse_args()
    jupyter = JupyterClient(options.url, os.environ.get("JUPYTER_TOKEN", ""))
    timer = IdleTimer(jupyter, ProcessActivity(), GPUActivity(), NetworkActivity())
    while True:
        idle_s, reason = timer.update(time.monotonic())
        suffix = ": " + reason if reason else ""
        print("idle for %d of %g minutes%s" % (idle_s // 60, options.minutes, suffix), flush=True)
        if idle_s >= options.minutes * 60:
            try:
                stop_notebook()
            except (OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
                print("could not stop the notebook, trying again: %s" % error, flush=True)
        time.sleep(options.every)


if __name__ == "__main__":
    main()

#!/bin/bash
# Runs as root at every start of the notebook, which fails when this takes 5 minutes: begins the idle stop, and in the background
# the build of the environment. Twice is as good as once.
# GLUONLAB_IDLE_MINUTES: stop the notebook after so long without use; 0 for never.
# GLUONLAB_ENVIRONMENT: NAME=VALUE NAME=VALUE, for the build and the idle stop: a proxy, a package index.
# DESTDIR is for trials: a folder that stands for /.
set -euo pipefail
root=${DESTDIR-}
home=$root/home/ec2-user
minutes=${GLUONLAB_IDLE_MINUTES:-60}
if [[ ! $minutes =~ ^[0-9]+$ ]]; then
  echo "GLUONLAB_IDLE_MINUTES $minutes is not a whole number: using 60"
  minutes=60
fi

mkdir -p "$root/opt/gluonlab" "$root/etc/systemd/system"
# What ~/SageMaker/.gluonlab/environment says goes before. A proxy has no way to the machine's own metadata.
{
  printf '%s=%q\n' GLUONLAB_REPOSITORY "${GLUONLAB_REPOSITORY-}" GLUONLAB_BUCKET "${GLUONLAB_BUCKET-}"
  read -ra pairs <<<"NO_PROXY=169.254.169.254,localhost,127.0.0.1 ${GLUONLAB_ENVIRONMENT-}"
  for pair in "${pairs[@]}"; do
    if [[ $pair =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; then
      printf '%s=%q\n' "${pair%%=*}" "${pair#*=}"
    else
      echo "GLUONLAB_ENVIRONMENT: ${pair%%=*} is not a NAME=VALUE: ignored" >&2
    fi
  done
} >"$root/opt/gluonlab/environment"

cat >"$root/opt/gluonlab/idle-stop.py" <<'END_OF_IDLE_STOP'
"""Stops the SageMaker notebook that it runs on after a time without use.
Signs of use: a kernel is busy or ran code; a terminal had input or output; a process of this user,
a GPU or the network worked; the heartbeat file was touched.
A job that only waits needs: touch ~/SageMaker/.gluonlab/heartbeat
Setting the clock has no effect. on-start.sh runs this as ec2-user with the system's Python 3.7.
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
BUSY_CPU = 0.05
BUSY_GPU = 5  # percent
BUSY_NETWORK = 100e3
class JupyterClient:
 def __init__(self, url, token=""):
  if urllib.parse.urlsplit(url).hostname not in ("localhost", "127.0.0.1"):
   raise SystemExit(
    "error: --url %s is not on this machine: use an address such as https://localhost:8443" % url
   )
  self.url, self.token = url.rstrip("/"), token
  self.last_use = {"kernels": [], "terminals": []}
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
  busy = []
  for kind in sorted(self.last_use):
   try:
    items = [dict(item) for item in self.get_json(kind)]
   except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
    print("cannot read %s from Jupyter: %s" % (kind, error), flush=True)
    continue
   busy += [item.get("name") for item in items if item.get("execution_state") == "busy"]
   self.last_use[kind] = sorted(
    [(item.get("id") or item.get("name"), item.get("last_activity")) for item in items], key=str
   )
  return ("kernel %s is busy" % busy[0] if busy else None), list(self.last_use.values())
class ProcessActivity:
 def __init__(self, proc="/proc"):
  self.proc, self.previous, self.checked_at = proc, {}, None
 def cpu_seconds(self):
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
   processes[pid, fields[19]] = sum(map(int, fields[11:15])) / tick, name
  return processes
 def find_activity(self, now):
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
 def __init__(self, timeout=30):
  self.timeout, self.process = timeout, None
 def find_activity(self):
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
 def __init__(self, path="/proc/net/dev"):
  self.path, self.previous, self.checked_at = path, None, None
 def byte_counts(self):
  try:
   with open(self.path) as file:
    lines = [line.partition(":") for line in file if ":" in line]
   counts = {name.strip(): rest.split() for name, _, rest in lines}
   return {name: int(n[0]) + int(n[8]) for name, n in counts.items() if name != "lo"}
  except (OSError, ValueError, IndexError):
   return {}
 def find_activity(self, now):
  previous, start = self.previous, self.checked_at
  self.previous, self.checked_at = self.byte_counts(), now
  if previous is None or now <= start:
   return None
  most = max([total - previous.get(name, 0) for name, total in self.previous.items()] + [0])
  if most < BUSY_NETWORK * (now - start):
   return None
  return "the network transferred %.1f MB in %.0f s" % (most / 1e6, now - start)
def modification_time(path):
 try:
  return os.stat(os.path.expanduser(path)).st_mtime_ns
 except OSError:
  return None
class IdleTimer:
 def __init__(self, jupyter, processes, gpus, network, heartbeat=HEARTBEAT):
  self.jupyter, self.processes = jupyter, processes
  self.gpus, self.network, self.heartbeat = gpus, network, heartbeat
  self.previous, self.idle_since = None, None
 def update(self, now):
  busy, last_use = self.jupyter.read_state()
  state = {
   "a kernel or terminal was used": last_use,
   "the heartbeat was touched": modification_time(self.heartbeat),
  }
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
 with open(METADATA) as file:
  metadata = json.load(file)
 name, region = metadata["ResourceName"], metadata["ResourceArn"].split(":")[3]
 aws = shutil.which("aws") or "aws"
 command = [aws, "sagemaker", "stop-notebook-instance"]
 command += ["--region", region, "--notebook-instance-name", name]
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
END_OF_IDLE_STOP

cat >"$root/opt/gluonlab/idle-stop.sh" <<END_OF_START
set -a
. $root/opt/gluonlab/environment
[ ! -f $home/SageMaker/.gluonlab/environment ] || . $home/SageMaker/.gluonlab/environment
exec python3 $root/opt/gluonlab/idle-stop.py --minutes $minutes
END_OF_START
cat >"$root/etc/systemd/system/gluonlab-idle-stop.service" <<END_OF_UNIT
[Unit]
Description=Stop this notebook when nobody uses it

[Service]
User=ec2-user
Environment=PATH=/usr/local/bin:/usr/bin:/bin:/home/ec2-user/anaconda3/bin
ExecStart=/bin/bash /opt/gluonlab/idle-stop.sh
StandardOutput=append:/var/log/gluonlab-idle-stop.log
StandardError=inherit
Restart=always
RestartSec=60
END_OF_UNIT
systemctl daemon-reload
if [ "$minutes" = 0 ]; then
  systemctl stop gluonlab-idle-stop.service || true
else
  systemctl restart gluonlab-idle-stop.service
fi

# The checkout's own script knows best what its version needs; before there is one, on-create.sh's does.
build=$home/SageMaker/gluonlab-source/sagemaker/build-env.sh
[ -f "$build" ] || build=$home/SageMaker/.gluonlab/build-env.sh
if [ ! -f "$build" ]; then
  sudo -u ec2-user tee "$home/SageMaker/gluonlab-FAILED.txt" <<<"$build is gone: clone gluonlab as ~/SageMaker/gluonlab-source, and start again"
  exit 0 # a notebook without gluonlab can still be mended; one that does not start cannot
fi
sudo -u ec2-user rm -f "$home"/SageMaker/gluonlab-{READY,FAILED}.txt # the last start's: its kernels went with the stop
nohup setsid sudo -u ec2-user -i env DESTDIR="$root" bash "$build" >/dev/null 2>&1 </dev/null &

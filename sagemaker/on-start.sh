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
  echo "GLUONLAB_IDLE_MINUTES $minutes is no whole number: 60 instead"
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
      echo "GLUONLAB_ENVIRONMENT: ${pair%%=*} is not the NAME of a NAME=VALUE, and is left out" >&2
    fi
  done
} >"$root/opt/gluonlab/environment"

cat >"$root/opt/gluonlab/idle-stop.py" <<'END_OF_IDLE_STOP'
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
BUSY_CPU = 0.05
BUSY_GPU = 5  # per cent
BUSY_NETWORK = 100e3
class Jupyter:
 def __init__(self, url, token=""):
  if urllib.parse.urlsplit(url).hostname not in ("localhost", "127.0.0.1"):
   raise SystemExit(
    "error: --url %s: give an address of this machine, such as https://localhost:8443"
    % url
   )
  self.url, self.token, self.used = url.rstrip("/"), token, {"kernels": [], "terminals": []}
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
  busy = []
  for what in sorted(self.used):
   try:
    found = [dict(one) for one in self.get(what)]
   except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
    print("Jupyter does not answer about %s: %s" % (what, error), flush=True)
    continue
   busy += [one.get("name") for one in found if one.get("execution_state") == "busy"]
   self.used[what] = sorted(
    [(one.get("id") or one.get("name"), one.get("last_activity")) for one in found],
    key=str,
   )
  return ("kernel %s is busy" % busy[0] if busy else None), list(self.used.values())
class Processes:
 def __init__(self, proc="/proc"):
  self.proc, self.before, self.since = proc, {}, None
 def seconds(self):
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
 def __init__(self, path="/proc/net/dev"):
  self.path, self.before, self.since = path, None, None
 def bytes(self):
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

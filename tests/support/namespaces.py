"""Simulated hosts: network namespaces with an address and an sshd each.

In each namespace the name of the machine resolves to the address of the host. The module needs
root, iproute2, and the client and server of OpenSSH.
"""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support.parameter_server import kill_processes

NET = "10.213.77"
PROGRAMS = ("ip", "ssh", "sshd", "ssh-keygen")
CLIENT = """Host *
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  IdentityFile {folder}/user
  IdentitiesOnly yes
  User root
  LogLevel ERROR
"""
SERVER = """HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
"""


def describe_missing_support():
    """Return the reason why this machine cannot simulate hosts, or ""."""
    if os.geteuid() != 0:
        return "root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing:
        return ", ".join(missing)
    trial = f"glt{os.getpid()}"
    process = subprocess.run(["ip", "netns", "add", trial], capture_output=True, check=False)
    if process.returncode:
        return process.stderr.decode().strip()
    try:
        for link in (["br0", "type", "bridge"], ["v0", "type", "veth", "peer", "v1"]):
            words = ["ip", "-n", trial, "link", "add", *link]
            process = subprocess.run(words, capture_output=True, check=False)
            if process.returncode:
                return f"{' '.join(link)}: {process.stderr.decode().strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", trial], check=False)
    return ""


def require_namespaces():
    """Skip a test if this machine cannot simulate hosts; with GLUONLAB_HOSTS=required it fails."""
    reason = describe_missing_support()
    if reason and os.environ.get("GLUONLAB_HOSTS") == "required":
        pytest.fail(f"no hosts can be made here: {reason}")
    if reason:
        pytest.skip(f"hosts for tests need {reason}")


class HostNetwork(NamedTuple):
    """The simulated hosts of a test.

    ``inside``: the prefix of commands in the namespace of the launcher. ``ssh``: the ssh command
    there. ``names``: the network device of each host.
    """

    inside: list
    ssh: str
    names: dict

    def set_link_state(self, host, state):
        """Set the link of a host ``up`` or ``down``."""
        hub = self.inside[3]
        _run_ip("-n", hub, "link", "set", self.names[host], state)

    def set_address(self, host, address):
        """Make the name of the machine resolve to an address on a host; return the previous one."""
        file = _hosts_file(self.inside[3].replace("-hub", f"-{host}"))
        previous = file.read_text().split()[-2]
        _write_hosts(file, address)
        return previous


@contextmanager
def create_hosts(folder: Path, *names: str):
    """Create namespaces that reach each other by these names, and one for the launcher."""
    prefix = f"gl{os.getpid()}"
    hub = f"{prefix}-hub"
    with ExitStack() as stack:
        _write_ssh_keys(folder)
        _create_namespace(stack, hub)
        _run_ip("-n", hub, "link", "add", "br0", "type", "bridge")
        _run_ip("-n", hub, "addr", "add", f"{NET}.1/24", "dev", "br0")
        _run_ip("-n", hub, "link", "set", "br0", "up")
        addresses = {name: f"{NET}.{number}" for number, name in enumerate(names, start=11)}
        config, known_hosts = [], []
        for name, address in addresses.items():
            space, cable = f"{prefix}-{name}", f"v-{name}"
            stack.enter_context(_write_temporary_hosts(space, address))
            _create_namespace(stack, space)
            _run_ip("-n", hub, "link", "add", cable, "type", "veth", "peer", "eth0", "netns", space)
            _run_ip("-n", hub, "link", "set", cable, "master", "br0")
            _run_ip("-n", hub, "link", "set", cable, "up")
            _run_ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _run_ip("-n", space, "link", "set", "eth0", "up")
            stack.callback(kill_processes, [_start_sshd(space, folder)])
            config.append(f"Host {name}\n  HostName {address}\n")
            known_hosts.append(f"{address} {(folder / 'host.pub').read_text()}")
        (folder / "known_hosts").write_text("".join(known_hosts))
        (folder / "ssh_config").write_text("".join(config) + CLIENT.format(folder=folder))
        inside = ["ip", "netns", "exec", hub]
        for address in addresses.values():
            _wait_for_sshd(inside, address)
        yield HostNetwork(inside, f"ssh -F {folder}/ssh_config", {n: f"v-{n}" for n in names})


@contextmanager
def _write_temporary_hosts(space, address):
    """Write the /etc/hosts of a namespace, which ip netns exec uses, until the block ends."""
    file = _hosts_file(space)
    file.parent.mkdir(parents=True)
    _write_hosts(file, address)
    try:
        yield
    finally:
        shutil.rmtree(file.parent)


def _hosts_file(space):
    return Path("/etc/netns", space, "hosts")


def _write_hosts(file, address):
    file.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")


def _write_ssh_keys(folder):
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "sshd_config").write_text(SERVER.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires this folder


def _create_namespace(stack, name):
    _run_ip("netns", "add", name)
    stack.callback(_delete_namespace, name)
    _run_ip("-n", name, "link", "set", "lo", "up")


def _delete_namespace(name):
    process = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
    for pid in process.stdout.split():
        subprocess.run(["kill", "-9", pid.decode()], check=False)
    subprocess.run(["ip", "netns", "del", name], check=False)


def _start_sshd(space, folder):
    server = shutil.which("sshd", path=_search_path())
    words = ["ip", "netns", "exec", space, server, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / f"{space}.log").open("w") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)


def _wait_for_sshd(inside, address):
    code = f"import socket; socket.create_connection(('{address}', 22), 1)"
    for _ in range(100):
        process = subprocess.run([*inside, "python3", "-c", code], capture_output=True, check=False)
        if process.returncode == 0:
            return
        time.sleep(0.05)
    raise TimeoutError(f"no sshd answers at {address}")


def _run_ip(*words):
    subprocess.run(["ip", *words], check=True)


def _search_path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

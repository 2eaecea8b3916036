"""`spawn` and the network: no door that another machine could reach, and the odd machines it runs on."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


def _why_not() -> str:
    if sys.platform != "linux" or os.getuid() != 0:
        return "namespaces are made by root on Linux"
    missing = [tool for tool in ("ip", "unshare", "nsenter") if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "can run"),
    pytest.mark.timeout(300),  # several launches one after the other, on a busy machine
]

SOON = 120  # seconds until a busy machine has done it
HERE, THERE = "10.77.0.1", "10.77.0.2"
HERE_6, THERE_6 = "fd77::1", "fd77::2"


# --- two machines, each a network namespace, with one cable -------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A network of its own, which lasts as long as the process that holds it."""

    holder: subprocess.Popen

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--", *words]

    def run(self, *words: str) -> str:
        return subprocess.run(self.command(*words), check=True, capture_output=True, text=True).stdout

    def listening(self) -> dict[int, set[str]]:
        """Each TCP port that is listened on, with the addresses in the kernel's hexadecimal."""
        ports: dict[int, set[str]] = {}
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{self.holder.pid}/net/{table}")
            for line in path.read_text().splitlines()[1:] if path.exists() else []:
                _, local, _, state, *_ = line.split()
                if state == "0A":
                    address, port = local.split(":")
                    ports.setdefault(int(port, 16), set()).add(address)
        return ports

    def answers(self, address: str, ports: list[int]) -> dict[int, str]:
        """What a connection from this machine to each port comes to: "accepted", or the error."""
        said = self.run(sys.executable, "-c", KNOCK, address, json.dumps(ports))
        return {int(port): answer for port, answer in json.loads(said).items()}


KNOCK = """
import json, socket, sys
answers = {}
for port in json.loads(sys.argv[2]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=10).close()
        answers[port] = "accepted"
    except OSError as error:
        answers[port] = type(error).__name__
print(json.dumps(answers))
"""


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo here; exec cat"],
        stdin=subprocess.PIPE,  # whose end, even by a kill of this process, ends the holder
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "here\n"
        made = Machine(holder)
        made.run("ip", "link", "set", "lo", "up")
        yield made
    finally:
        holder.stdin.close()
        holder.wait(timeout=SOON)
        holder.stdout.close()


@pytest.fixture
def cable() -> Iterator[tuple[Machine, Machine]]:
    """Two machines; what one says arrives at the other, by IPv4 and, where the kernel has it, by IPv6."""
    with machine() as here, machine() as there:
        other_end = ["peer", "name", "veth0", "netns", str(there.holder.pid)]
        here.run("ip", "link", "add", "veth0", "type", "veth", *other_end)
        for one, address, address_6 in ((here, HERE, HERE_6), (there, THERE, THERE_6)):
            one.run("ip", "address", "add", f"{address}/24", "dev", "veth0")
            if Path("/proc/net/if_inet6").exists():
                one.run("ip", "-6", "address", "add", f"{address_6}/64", "dev", "veth0", "nodad")
            one.run("ip", "link", "set", "veth0", "up")
        yield here, there


def wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert process.poll() is None, f"it ended with status {process.returncode}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# --- doors --------------------------------------------------------------------------------------------

LAUNCHES = [  # number of ranks, debug, GLOO_SOCKET_IFNAME in the caller
    (2, False, None),
    (4, True, "veth0"),
]

PARENT = """
import json, os, sys, time
from pathlib import Path
from ddp_src import spawn

def work(rank, folder):
    import torch, torch.distributed as dist
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    (folder / f"joined{rank}").touch()
    deadline = time.monotonic() + 300
    while not (folder / "go on").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    dist.all_reduce(total)
    return total.item()

for number, (nprocs, debug, interface) in enumerate(json.loads(sys.argv[2])):
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    folder = Path(sys.argv[3], str(number))
    print(spawn(work, (folder,), nprocs, start_method=sys.argv[1], debug=debug, show=False), flush=True)
"""


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_no_other_machine_can_connect_while_a_launch_runs(cable, start_method, tmp_path, request):
    here, there = cable
    folders = [tmp_path / str(number) for number in range(len(LAUNCHES))]
    for folder in folders:
        folder.mkdir()
    program = [sys.executable, "-c", PARENT, start_method, json.dumps(LAUNCHES), str(tmp_path)]
    parent = subprocess.Popen(here.command(*program), stdout=subprocess.PIPE, text=True)
    request.addfinalizer(parent.kill)
    for folder, (nprocs, _, _) in zip(folders, LAUNCHES, strict=True):
        joined = [folder / f"joined{rank}" for rank in range(nprocs)]
        wait_until(lambda joined=joined: all(path.exists() for path in joined), parent)
        doors = here.listening()
        assert len(doors) >= nprocs  # Gloo does listen
        assert set().union(*doors.values()) == {"0100007F"}  # 127.0.0.1
        ports = sorted(doors)
        for address in (HERE, HERE_6) if Path("/proc/net/if_inet6").exists() else (HERE,):
            assert there.answers(address, ports) == dict.fromkeys(ports, "ConnectionRefusedError")
        assert here.answers("127.0.0.1", ports) == dict.fromkeys(ports, "accepted")
        (folder / "go on").touch()
        # What came in uninvited, above, changed no result.
        assert json.loads(parent.stdout.readline()) == [nprocs * sum(range(1, nprocs + 1))] * nprocs
    assert parent.wait(timeout=SOON) == 0
    parent.stdout.close()


@pytest.mark.parametrize(("bound_to", "address"), [("0.0.0.0", HERE), ("::", HERE_6)])
def test_a_server_on_every_address_would_be_seen(cable, bound_to, address, request):
    here, there = cable
    if bound_to == "::" and not Path("/proc/net/if_inet6").exists():
        bound_to, address = "0.0.0.0", HERE
    server = subprocess.Popen(
        here.command(sys.executable, "-c", SERVER, bound_to),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    request.addfinalizer(server.kill)
    port = int(server.stdout.readline())
    assert here.listening() == {port: {"00000000" if bound_to == "0.0.0.0" else "0" * 32}}
    assert there.answers(address, [port]) == {port: "accepted"}
    server.communicate()


SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=family) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


# --- odd machines -------------------------------------------------------------------------------------

ADD_UP = """
import socket, sys
import torch, torch.distributed as dist
from ddp_src import spawn

def add_up(rank):
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    return total.item()

for start_method in ("forkserver", "spawn"):
    print(spawn(add_up, start_method=start_method))
"""
ALL_IS_WELL = "2 ranks · gloo · CPU\n[3.0, 3.0]\n[3.0, 3.0]\n"


def run_unshared(kinds: list[str], prepare: str, program: str) -> subprocess.CompletedProcess:
    """Run a Python program where `unshare` made these kinds of namespaces and `prepare` was run in them."""
    shell = f'set -e; {prepare}; exec "$@"'
    command = ["unshare", *kinds, "sh", "-c", shell, "sh", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=2 * SOON)


NAMELESS = """
import socket
socket.sethostname("no-such-host")
try:
    raise SystemExit(f"no-such-host is {socket.gethostbyname(socket.gethostname())}")
except OSError:
    pass
"""


def test_a_machine_whose_own_name_does_not_resolve_is_like_any_other(tmp_path):
    names = tmp_path / "nsswitch.conf"
    names.write_text("hosts: files\n")  # no service that would make an address for any name
    mount = f"test ! -e /etc/nsswitch.conf || mount --bind {names} /etc/nsswitch.conf"
    done = run_unshared(["--uts", "--mount"], mount, NAMELESS + ADD_UP)
    assert (done.stdout, done.stderr, done.returncode) == (ALL_IS_WELL, "", 0)


def test_a_machine_with_loopback_alone_is_like_any_other():
    done = run_unshared(["--net"], "ip link set lo up", ADD_UP)
    assert (done.stdout, done.stderr, done.returncode) == (ALL_IS_WELL, "", 0)


def test_a_machine_without_loopback_is_one_sentence_before_anything_starts():
    done = run_unshared(["--net"], "true", "from ddp_src import spawn; spawn(print, nprocs=2)")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.splitlines()[-2:] == [
        "ddp_src._failures.LaunchRefused: the ranks cannot talk over 127.0.0.1 (Network is unreachable): "
        "turn the loopback interface on, on Linux with `ip link set lo up`.",
        "各个 rank 无法通过 127.0.0.1 通信（Network is unreachable）："
        "请启用回环网卡，Linux 上的命令是 `ip link set lo up`。",
    ]

"""Real devices on this machine: `adbd`s in sandboxes, a separate `adb` server and a separate `sshd`, all on loopback.

As a program (`python tests/devices/loopback.py FOLDER`) it starts two adbd and an sshd, writes FOLDER/conf with the
farm `loopback` of an adb, an ssh and a local device, and waits for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[2]
_LIBRARIES = ("usr/lib/x86_64-linux-gnu/android", "usr/lib/x86_64-linux-gnu")
_PROGRAM = "usr/lib/android-sdk/platform-tools/adbd"
_GETPROP = """\
#!/bin/sh
# Debian's adbd has no getprop, so the properties of this device are lines of a file.
sed -n "s/^$1=//p" /data/properties
"""
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication {password}
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
MaxSessions 64
MaxStartups 64
"""


class ComponentMissing(Exception):
    """A program that these devices need is not on this machine. The message says what to install."""


class NeedsRoot(Exception):
    """A test does what only root may do. It is skipped for another user; the message says why."""


def adbd_folder() -> Path:
    return Path(os.environ.get("QNNSWEEP_ADBD", ROOT / ".adbd"))


def require(*programs: str) -> None:
    """Raise ComponentMissing unless all of `programs` exist (`adbd`: the unpacked one); only root may use them."""
    packages = {"adb": "adb", "sshd": "openssh-server", "bwrap": "bubblewrap", "gcc": "gcc libc6-dev"}
    search = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in programs if name != "adbd" and shutil.which(name, path=search) is None]
    lacks = [f"{name} (apt install {packages.get(name, name)})" for name in missing]
    if "adbd" in programs and not (adbd_folder() / _PROGRAM).is_file():
        lacks.append(f"an unpacked adbd in {adbd_folder()} (of Debian bookworm-backports, never installed)")
    require_root("to start daemons and sandboxes")
    if lacks:
        raise ComponentMissing(
            f"the devices of these tests lack {', '.join(lacks)}: run `.ci/machine` on Debian 12 as root; it brings all"
        )


def require_root(why: str) -> None:
    """Raise NeedsRoot unless the user is root."""
    if os.geteuid() != 0:
        raise NeedsRoot(f"needs root, {why}")


def free_port() -> int:
    """Return an unused port. It is above the ports that adb's server scans for emulators."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"no process listens on {port}:\n{log.read_text(errors='replace')}")


@dataclass(kw_only=True)
class AdbServer:
    """A separate adb server: tests do not touch the user's phones, and their devices are invisible to the user."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        require("adb")
        home = self.folder / "adb-home"
        home.mkdir(parents=True, exist_ok=True)
        log = self.folder / "adb-server.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                ["adb", "-P", str(self.port), "nodaemon", "server"],
                env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        wait_for_port(self.port, self._process, log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def adb(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["adb", "-P", str(self.port), *arguments], capture_output=True, timeout=60, check=False)


@dataclass(kw_only=True)
class Adbd:
    """An `adbd` with its own `/data`. It can read the rest of this machine and change none of it."""

    folder: Path
    server: AdbServer
    properties: dict[str, str] = field(default_factory=dict)
    small_bytes: int = 20_000_000
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """Return the path of its `/data` on this machine."""
        return self.folder / "data"

    @property
    def small(self) -> Path:
        """Return the path of its `/data/small`, a disk of `small_bytes`, on this machine."""
        return Path(f"/proc/{self.pid}/root/data/small")

    def sense(self, celsius: float) -> None:
        """Set the temperature that its thermal sensor shows."""
        zone = self.data / "sys" / "class" / "thermal" / "thermal_zone0"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "temp").write_text(f"{celsius * 1000:.0f}\n")

    @property
    def pid(self) -> int:
        """Return the process id of adbd itself, inside its sandbox."""
        assert self._process is not None
        (child,) = psutil.Process(self._process.pid).children()
        return child.pid

    def start(self) -> None:
        require("adbd", "bwrap", "gcc", "adb")
        (self.data / "bin").mkdir(parents=True, exist_ok=True)
        (self.data / "local" / "tmp").mkdir(parents=True, exist_ok=True)
        (self.data / "small").mkdir(exist_ok=True)
        (self.data / "sys").mkdir(exist_ok=True)
        (self.data / "bin" / "getprop").write_text(_GETPROP)
        (self.data / "bin" / "getprop").chmod(0o755)
        (self.data / "properties").write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        shim, log = self.folder / "loopback.so", self.folder / "adbd.log"
        source = Path(__file__).with_name("loopback.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        adbd = adbd_folder()
        environment = {
            "ADBD_PORT": str(self.port),
            "HOME": "/data",
            "LANG": "C.UTF-8",
            "LD_PRELOAD": "/run/loopback.so",
            "PATH": "/data/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        }
        command = [
            "bwrap", "--die-with-parent", "--clearenv",
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
            *_rest_of_this_machine(),
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--ro-bind", str(shim), "/run/loopback.so",
            "--bind", str(self.data), "/data", "--bind", str(self.data / "sys"), "/sys",
            "--size", str(self.small_bytes), "--tmpfs", "/data/small",
            "--chdir", "/data", "/lib64/ld-linux-x86-64.so.2",
            "--library-path", ":".join(str(adbd / folder) for folder in _LIBRARIES), str(adbd / _PROGRAM),
        ]  # fmt: skip
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        wait_for_port(self.port, self._process, log)

    def kill(self) -> None:
        """Kill adbd as if its battery were removed, except that the processes that it started live on."""
        if self._process is not None:
            for process in (*psutil.Process(self._process.pid).children(), self._process):
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@dataclass(kw_only=True)
class Sshd:
    """An `sshd` with its own keys. `key` is the key file for a login."""

    folder: Path
    password: bool = False
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        require("sshd")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            for name in ("host_key", "key"):
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.folder / name]
                subprocess.run(command, check=True)
            shutil.copy(self.folder / "key.pub", self.folder / "authorized_keys")
            host_key = (self.folder / "host_key.pub").read_text()
            self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}")
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd wants to confine its children
        config, log = self.folder / "sshd_config", self.folder / "sshd.log"
        password = "yes" if self.password else "no"
        config.write_text(_SSHD.format(port=self.port, folder=self.folder, password=password))
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [program, "-D", "-e", "-f", config], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        wait_for_port(self.port, self._process, log)

    @property
    def processes(self) -> list[psutil.Process]:
        """Return the sshd processes that serve connections, without the commands that they run."""
        servers: list[psutil.Process] = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # a connection may end at any time
                if process.name().startswith("sshd"):
                    servers.append(process)
        return servers

    def drop(self) -> None:
        """Cut every connection and accept no new one."""
        self._signal(signal.SIGKILL, psutil.Process(self.pid), *self.processes)

    def kill(self) -> None:
        if self._process is not None:
            self.drop()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP, *self.processes)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT, *self.processes)

    @staticmethod
    def _signal(number: signal.Signals, *processes: psutil.Process) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _rest_of_this_machine() -> Iterator[str]:
    """Yield mounts of this machine that a device may read. /tmp is only for tests: a device must not depend on it."""
    for path in sorted(Path("/").iterdir()):
        if path.name in ("data", "dev", "proc", "run", "sys", "lost+found"):
            continue
        yield from (
            ("--symlink", str(path.readlink()), str(path)) if path.is_symlink() else ("--ro-bind", str(path), str(path))
        )


@contextlib.contextmanager
def running(*devices: AdbServer | Adbd | Sshd) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        for device in devices:
            device.start()
            stack.callback(device.kill)
        yield


def write_farm(conf: Path, phones: Sequence[Adbd], boards: Sequence[Sshd], **shared: object) -> list[str]:
    """Write the configuration of a farm `loopback` (phones, boards, this machine); return the devices' names."""
    devices: dict[str, dict[str, object]] = {}
    for index, phone in enumerate(phones, start=1):
        devices[f"phone_{index}"] = {
            "transport": "adb",
            "address": phone.serial,
            "adb_server": phone.server.address,
            "work_folder": "/data/local/tmp/qnnsweep",
            "python": sys.executable,
        }
    for index, board in enumerate(boards, start=1):
        devices[f"board_{index}"] = {
            "transport": "ssh",
            "address": f"root@127.0.0.1:{board.port}",
            "ssh": {"known_hosts": str(board.known_hosts), "key_file": str(board.key), "agent": False},
            "work_folder": str(board.folder / "work" / "qnnsweep"),
            "lock_folder": str(board.folder),  # several boards are this machine
            "python": sys.executable,
        }
    devices["bench"] = {"transport": "local", "work_folder": str(conf / "work" / "bench")}
    for group in ("device", "farm"):
        (conf / group).mkdir(parents=True, exist_ok=True)
    for name, device in devices.items():
        (conf / "device" / f"{name}.yaml").write_text(yaml.safe_dump({"name": name} | device | shared))
    (conf / "farm" / "loopback.yaml").write_text(yaml.safe_dump({"name": "loopback", "devices": list(devices)}))
    return list(devices)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    for name in ("adb", "phone", "board"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    server = AdbServer(folder=folder / "adb")
    phone, board = Adbd(folder=folder / "phone", server=server), Sshd(folder=folder / "board")
    with running(server, phone, board):
        write_farm(folder / "conf", [phone], [board])
        print(f"qnnsweep run --config-dir {folder / 'conf'} farm=loopback experiment=quickstart", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()

"""A benchmark of file transfers, compared with scp and adb in the same run, and the cost of a changed program.

Starts sshd and adbd on loopback, as root (`.ci/machine` installs them). All work of the transport is timed:
the creation of the folder, the transfer to a temporary name, and the renaming. The time of sha256 on the device is
printed separately.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from qnnsweep.conf.devices import DeviceConfig, SshConfig, TransportKind
from qnnsweep.conf.units import MIB
from qnnsweep.tasks.devices.adb import AdbTransport
from qnnsweep.tasks.devices.deploy import deploy
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.ssh import SshTransport
from qnnsweep.tasks.devices.transport import RunRequest, Transport
from qnnsweep.tasks.records import Bundle
from qnnsweep.tasks.storage.store import Store
from tests.devices.loopback import Adbd, AdbServer, Sshd, free_port, running

DEADLINE_S = 600.0
PROGRAM_BYTES, LIBRARY_BYTES, INPUT_BYTES, INPUTS = 4_000_000, 16_000_000, 600_000, 32


class Relay:
    """A relay to a port of this machine that counts the bytes in both directions."""

    def __init__(self, port: int) -> None:
        self.port, self.passed = free_port(), 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def _accept(self, port: int) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(2**16):
                with self._lock:
                    self.passed += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the transferred file")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per direction and tool, in alternation")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    # Not on a disk, which would still be writing the data of the previous round.
    memory = Path("/dev/shm")  # noqa: S108 - a temporary folder is created in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        result = measure(Path(folder), options.mib * MIB, options.rounds)
    for key, value in result.items():
        print(f"{key:28} {value:,.3f}" if isinstance(value, float) else f"{key:28} {value:,}")
    if options.json:
        print(json.dumps(result))


def measure(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    server = AdbServer(folder=folder / "adb")
    phone, board = Adbd(folder=folder / "phone", server=server), Sshd(folder=folder / "board")
    for path in (server.folder, phone.folder, board.folder):
        path.mkdir()
    source, back = folder / "source", folder / "back"
    source.write_bytes(os.urandom(size))
    with running(server, phone, board):
        over_ssh = SshTransport(
            user="root", host="127.0.0.1", port=board.port, config=login(board), deadline_s=DEADLINE_S
        )
        over_adb = AdbTransport(serial=phone.serial, server=("127.0.0.1", server.port), deadline_s=DEADLINE_S)
        there, on_phone = f"{board.folder}/file", "/data/file"
        hosts = f"UserKnownHostsFile={board.known_hosts}"
        scp = ["scp", "-q", "-B", "-P", str(board.port), "-i", board.key, "-o", hosts]
        adb = ["adb", "-P", str(server.port), "-s", phone.serial]
        far = f"root@127.0.0.1:{there}"
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "ssh_put": (lambda: over_ssh.push(source, there), lambda: plain([*scp, source, far])),
            "ssh_get": (lambda: pull(over_ssh, str(board.folder), size, folder), lambda: plain([*scp, far, back])),
            "adb_push": (lambda: over_adb.push(source, on_phone), lambda: plain([*adb, "push", source, on_phone])),
            "adb_pull": (lambda: pull(over_adb, "/data", size, folder), lambda: plain([*adb, "pull", on_phone, back])),
        }
        connect(over_ssh, over_adb)
        result: dict[str, Any] = {"bytes": size, "rounds": rounds}
        for way, (ours, theirs) in ways.items():
            rounds_s = [(timed(ours), timed(theirs)) for _ in range(rounds)]
            seconds, plain_seconds = (statistics.median(side) for side in zip(*rounds_s, strict=True))
            result |= {f"{way}_s": seconds, f"{way}_plain_s": plain_seconds, f"{way}_ratio": plain_seconds / seconds}
        result["sha256_s"] = timed(lambda: over_ssh.run(RunRequest(["sha256sum", there], deadline_s=DEADLINE_S)))
        over_ssh.close()
        extra = {name: redeployed(name, folder, phone, board) for name in ("ssh", "adb")}
    result |= {f"redeploy_extra_bytes_{name}": value for name, value in extra.items()}
    result["redeploy_extra_bytes"] = max(extra.values())
    result["ratio"] = min(result[f"{way}_ratio"] for way in ways)
    return result


def pull(transport: Transport, source: str, size: int, folder: Path) -> None:
    transport.pull(source, {"file": size}, folder / "pulled")
    shutil.rmtree(folder / "pulled")


def redeployed(way: str, folder: Path, phone: Adbd, board: Sshd) -> int:
    """Return the bytes on the wire for a bundle in which only the program has changed, except the program itself."""
    store = Store(folder / f"store-{way}")
    relay = Relay(board.port if way == "ssh" else phone.port)
    if way == "ssh":
        known = folder / "known_hosts"
        known.write_text(board.known_hosts.read_text().replace(f":{board.port} ", f":{relay.port} "))
        config = DeviceConfig(
            name=way,
            transport=TransportKind.ssh,
            address=f"root@127.0.0.1:{relay.port}",
            ssh=SshConfig(known_hosts=str(known), key_file=str(board.key), agent=False),
            work_folder=f"{board.folder}/work/qnnsweep",
        )
    else:
        config = DeviceConfig(
            name=way,
            transport=TransportKind.adb,
            address=f"127.0.0.1:{relay.port}",
            adb_server=phone.server.address,
            work_folder="/data/work/qnnsweep",
        )
    same = [store.put_bytes(os.urandom(size)) for size in (10_000, LIBRARY_BYTES, *[INPUT_BYTES] * INPUTS)]
    farm = Farm(host_environment={}, folder=folder / "farm")
    passed = [0, 0]
    for turn in range(2):
        program = store.put_bytes(os.urandom(PROGRAM_BYTES))
        bundle = Bundle(runner=same[0], blobs=(*same, program), launches=())
        with farm.lease([config]) as device:
            sent = deploy(bundle, device=device, store=store)
        passed[turn] = relay.passed
        if turn == 1 and sent.bytes_sent != PROGRAM_BYTES:
            raise SystemExit(f"{way}: {sent.bytes_sent} bytes were sent for a program of {PROGRAM_BYTES}")
    return passed[1] - passed[0] - PROGRAM_BYTES


def login(board: Sshd) -> SshConfig:
    return SshConfig(known_hosts=str(board.known_hosts), key_file=str(board.key), agent=False)


def connect(*transports: Transport) -> None:
    for transport in transports:
        transport.run(RunRequest(["true"], deadline_s=DEADLINE_S))


def plain(command: list[Any]) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True, stdin=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


if __name__ == "__main__":
    main()

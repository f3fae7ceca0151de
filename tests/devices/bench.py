"""A phone and a board for one test, and cells for them that need no toolchain."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qnnsweep.conf.devices import DeviceConfig, SshConfig, TransportKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.records import Blob, Bundle, Capture, Launch, LaunchedMethod, TensorSpec
from qnnsweep.tasks.storage.store import Store
from tests.devices.loopback import Adbd, AdbServer, Sshd, running

OUTPUT = TensorSpec(name="logits", shape=(2,), dtype="float32")
WRITES = """
import sys
from pathlib import Path
Path("outputs/output_0_0.raw").write_bytes(bytes(8))
Path("etdump.etdp").write_bytes(b"etdump")
"""


def when(condition: Callable[[], bool], action: Callable[[], object]) -> threading.Thread:
    """Call `action` in a thread as soon as `condition` holds."""

    def watch() -> None:
        for _ in range(12_000):
            if condition():
                action()
                return
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def shipping_launch(program: Blob, inputs: Blob) -> Launch:
    """Return the launch of a shipping program on one sample, with the output `OUTPUT`."""
    return Launch(
        name="shipping",
        program=program,
        input_list=inputs,
        samples=1,
        debug=False,
        debug_buffer_bytes=0,
        events=5,
        iterations=1,
        warm_up=0,
        methods=(LaunchedMethod(name=None, index=0, outputs=(OUTPUT,)),),
    )


def bundle_of(code: str, store: Store, *more: Blob) -> Bundle:
    """Return a bundle with one launch, whose runner is this code, and with more blobs."""
    runner, program, inputs = (store.put_bytes(data) for data in (code.encode(), b"program", b""))
    launch = shipping_launch(program, inputs)
    return Bundle(runner=runner, blobs=(runner, program, inputs, *more), launches=(launch,))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A phone and a board that one test may break, and a farm of both."""

    server: AdbServer
    phone: Adbd
    board: Sshd
    farm: Farm
    store: Store
    folder: Path

    @property
    def over_adb(self) -> DeviceConfig:
        return DeviceConfig(
            name="phone",
            transport=TransportKind.adb,
            address=self.phone.serial,
            adb_server=self.server.address,
            work_folder="/data/local/qnnsweep",
            python=sys.executable,
            deadline_s=30,
        )

    @property
    def over_ssh(self) -> DeviceConfig:
        login = SshConfig(known_hosts=str(self.board.known_hosts), key_file=str(self.board.key), agent=False)
        return DeviceConfig(
            name="board",
            transport=TransportKind.ssh,
            address=f"root@127.0.0.1:{self.board.port}",
            ssh=login,
            work_folder=f"{self.board.folder}/work/qnnsweep",
            lock_folder=str(self.board.folder),
            python=sys.executable,
            deadline_s=30,
        )

    @property
    def here(self) -> DeviceConfig:
        return DeviceConfig(name="here", work_folder=str(self.folder / "here" / "qnnsweep"), deadline_s=30)

    def bundle(self, code: str, *, ballast: int = 0) -> Bundle:
        """Return a bundle with one launch, whose runner is this code."""
        weight = [self.store.put_bytes(os.urandom(ballast))] if ballast else []
        return bundle_of(code, self.store, *weight)

    def measure(self, bundle: Bundle, *devices: DeviceConfig, soc: SocConfig | None = None) -> Capture:
        return measure(bundle, devices, soc, store=self.store, farm=self.farm)


@contextmanager
def started_bench(tmp_path: Path) -> Iterator[Bench]:
    """Start an adb server, a phone and a board."""
    for name in ("adb", "phone", "board"):
        (tmp_path / name).mkdir()
    server = AdbServer(folder=tmp_path / "adb")
    phone, board = Adbd(folder=tmp_path / "phone", server=server), Sshd(folder=tmp_path / "board", password=True)
    with running(server, phone, board):
        yield Bench(
            server=server,
            phone=phone,
            board=board,
            farm=Farm(host_environment={}, folder=tmp_path / "farm"),
            store=Store(tmp_path / "store"),
            folder=tmp_path,
        )

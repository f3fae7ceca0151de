"""The programs of docs/hiring.md hire and give back a real device; the commands of farms that cannot be had are small
programs that answer as the farm's own did, or as its documentation says."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from qnnsweep.conf.devices import DeviceConfig, LeaseConfig
from qnnsweep.tasks.errors import DeviceError
from tests.devices.bench import WRITES, Bench
from tests.flows.cluster import wait_until
from tests.test_code_blocks import ROOT, blocks

pytestmark = pytest.mark.slow

# labgrid 26.0.1 printed these lines. A place that is not acquired cannot be released.
LABGRID = """\
#!/bin/sh
echo "$@" >>{folder}/log
case "$*" in
  reserve*soc=SM8650) echo "export LG_TOKEN=S8YOMDX5GG" ;;
  *acquire) touch {folder}/held && echo "acquired place board-1" ;;
  *show) cat <<'END'
Place 'board-1':
  tags: soc=SM8650
Acquired resource 'NetworkService' (exp1/group1/NetworkService/NetworkService):
  {{'acquired': 'board-1',
   'avail': True,
   'cls': 'NetworkService',
   'params': {{'address': '127.0.0.1',
              'extra': {{'proxy': 'localhost', 'proxy_required': False}},
              'port': {port},
              'username': 'root'}}}}
END
  ;;
  *release) rm {folder}/held && echo "released place board-1" ;;
  cancel-reservation*) ;;
  *) exit 1 ;;
esac
"""
JUMPSTARTER = """\
#!/bin/sh
echo "$@" >>{folder}/log
case "$*" in
  "create lease -l soc=SM8650 --duration 2h -o name") touch {folder}/held && echo lease-1 ;;
  "shell --lease lease-1 -- j adb tunnel -P "*) shift 7; exec {python} {folder}/tunnel.py "$2" {server} ;;
  "delete leases lease-1") rm {folder}/held ;;
  *) exit 1 ;;
esac
"""
TUNNEL = """\
import asyncio, sys
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def meet(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(meet, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""
SSH = """\
#!/bin/sh
echo "$@" >>{folder}/log
exec {ssh} -o UserKnownHostsFile={known_hosts} -o IdentitiesOnly=yes -i '{key}' -p {port} "$@"
"""


class Scripts:
    """The programs of a farm of the document, and the farm's own command as the first one on the path."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = bench.folder / "programs"
        self.log = self.folder / "log"
        self.held = self.folder / "held"
        self.hires = bench.folder / "home" / ".hires"
        self.folder.mkdir()
        monkeypatch.setenv("HOME", str(bench.folder / "home"))
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def lease(self, farm: str, *words: str) -> LeaseConfig:
        """Return the configuration of a lease with the two programs of the document."""
        texts = [text for language, text in blocks(ROOT / "docs" / "hiring.md") if language == "sh"]
        verbs: dict[str, list[str]] = {}
        for verb in ("acquire", "release"):
            (text,) = (text for text in texts if re.match(rf"#!.*\n# {verb} (with )?{farm}\b", text))
            verbs[verb] = [self.program(verb, text), *words]
        acquire, release = verbs["acquire"], verbs["release"]
        return LeaseConfig(acquire=acquire, release=release, acquire_s=60.0, release_s=20.0, idle_s=0.5)

    def hire(self, bench: Bench, device: DeviceConfig, lease: LeaseConfig) -> None:
        """Measure a cell on the hired device, and wait until it is given back."""
        (bench.phone.data / "properties").write_text("ro.soc.model=SM8650\n")
        hired = replace(device, address=None, adb_server=None, lease=lease)
        with bench.farm.lease([hired]) as held:
            assert held.hire is not None
        assert bench.measure(bench.bundle(WRITES), hired).device == device.name
        folder = bench.folder / "farm" / "hired"
        wait_until(lambda: not list(folder.iterdir()), 30, "the device is given back")
        assert list(self.hires.iterdir()) == []


def commands_with(word: str) -> list[int]:
    """Return the processes that have a word in their command."""
    found: list[int] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process.pid] if word in process.cmdline() else []
    return found


@pytest.fixture
def scripts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.setenv("QNNSWEEP_SOC", "SM8650")  # the cells of these tests need none
    return Scripts(bench, monkeypatch)


def test_a_place_of_labgrid_is_hired_and_given_back(bench: Bench, scripts: Scripts) -> None:
    scripts.program("labgrid-client", LABGRID.format(folder=scripts.folder, port=bench.board.port))
    scripts.hire(bench, bench.over_ssh, scripts.lease("labgrid"))
    assert scripts.log.read_text().splitlines() == [
        "reserve --wait --shell soc=SM8650",
        "-p +S8YOMDX5GG acquire",
        "-p +S8YOMDX5GG show",
        "-p +S8YOMDX5GG release",
        "cancel-reservation S8YOMDX5GG",
    ]
    assert not scripts.held.exists()


def test_an_exporter_of_jumpstarter_is_hired_and_given_back(bench: Bench, scripts: Scripts) -> None:
    bench.server.adb("connect", bench.phone.serial)
    (scripts.folder / "tunnel.py").write_text(TUNNEL)
    server = bench.server.port
    scripts.program("jmp", JUMPSTARTER.format(folder=scripts.folder, python=sys.executable, server=server))
    scripts.hire(bench, bench.over_adb, scripts.lease("Jumpstarter"))
    first, tunnel, last = scripts.log.read_text().splitlines()
    assert (first, last) == ("create lease -l soc=SM8650 --duration 2h -o name", "delete leases lease-1")
    assert tunnel.startswith("shell --lease lease-1 -- j adb tunnel -P ")
    wait_until(lambda: not commands_with(str(scripts.folder / "tunnel.py")), 10, "the tunnel has ended")
    assert not scripts.held.exists()


def test_a_phone_behind_a_host_with_ssh_is_hired_and_given_back(
    bench: Bench, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.server.adb("connect", bench.phone.serial)
    monkeypatch.setenv("ADB_PORT", str(bench.server.port))
    files = {"known_hosts": bench.board.known_hosts, "key": bench.board.key}
    ssh = shutil.which("ssh", path=os.environ["PATH"].partition(":")[2])
    scripts.program("ssh", SSH.format(folder=scripts.folder, ssh=ssh, port=bench.board.port, **files))
    scripts.hire(bench, bench.over_adb, scripts.lease("behind SSH", "root@127.0.0.1"))
    (line,) = scripts.log.read_text().splitlines()
    assert line.startswith("-N -o BatchMode=yes -o ExitOnForwardFailure=yes -L 127.0.0.1:")
    wait_until(lambda: not commands_with(line.split()[-2]), 10, "ssh has ended")


def test_a_host_that_refuses_the_login_gives_no_device_and_its_words_are_said(
    bench: Bench, scripts: Scripts, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong key"
    wrong.write_bytes(b"")
    files = {"known_hosts": bench.board.known_hosts, "key": wrong}
    ssh = shutil.which("ssh", path=os.environ["PATH"].partition(":")[2])
    scripts.program("ssh", SSH.format(folder=scripts.folder, ssh=ssh, port=bench.board.port, **files))
    lease = scripts.lease("behind SSH", "root@127.0.0.1")
    hired = replace(bench.over_adb, address=None, adb_server=None, lease=lease)
    with pytest.raises(DeviceError, match="Permission denied"), bench.farm.lease([hired]):
        pass


def test_the_document_shows_endpoints_that_a_lease_accepts(bench: Bench, scripts: Scripts) -> None:
    document = (ROOT / "docs" / "hiring.md").read_text()
    for line in re.findall(r'`(\{"[^`]*"\})`', document):
        json.loads(line.replace("\n", " ").replace("…", "1a2b3c"))
        words = [scripts.program("farm", f"#!/bin/sh\necho '{line}'\n".replace("…", "1a2b3c"))]
        hired = replace(bench.over_ssh, address=None, lease=LeaseConfig(acquire=words, release=["true"], idle_s=0.1))
        with bench.farm._hired.endpoint(hired, None) as (config, _):
            assert config.address in ("1a2b3c", "user@host:22")

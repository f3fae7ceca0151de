"""The contract of `Transport`, which every transport fulfils on a real device."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.conf.devices import TransportKind
from qnnsweep.tasks.devices.device import transport_of
from qnnsweep.tasks.devices.local import LocalTransport
from qnnsweep.tasks.devices.output import LIMIT_BYTES
from qnnsweep.tasks.errors import DeadlinePassed, DeviceError
from tests.devices.conftest import TRANSPORTS, TransportCase, pull_file
from tests.processes import assert_dead

SAY_ARGUMENTS = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(word) for word in sys.argv[1:]))"
HOSTILE = [
    "two words", " ", "", "'", '"', "it's", "a\nb", "\t", "$(reboot)", "`reboot`", "$HOME", "${IFS}", ";", "&&", "|",
    ">", "*", "?", "~", "\\", "\\n", "%s", "!", "#", "-rf", "--", "{a,b}", "名前", "é", "🐉", "\x01", "\x7f",
]  # fmt: skip
NAMES = ["plain", "two words", 'it\'s "$(x)" `y` $HOME;&|*', "a\nb", "名前", "-rf"]
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_a_file_is_pushed_and_pulled_bit_by_bit(
    transport_case: TransportCase, tmp_path: Path, name: str, size: int
) -> None:
    content = os.urandom(size)
    source, back = tmp_path / name, tmp_path / "new" / "back"
    source.write_bytes(content)
    transport_case.transport.push(source, f"{transport_case.folder}/new folder/{name}")
    assert (transport_case.here / "new folder" / name).read_bytes() == content
    assert pull_file(transport_case.transport, f"{transport_case.folder}/new folder/{name}", size, back) == content
    assert [path.name for path in (transport_case.here / "new folder").iterdir()] == [name]
    assert [path.name for path in back.parent.iterdir()] == ["back"]


def test_fifty_megabytes_are_pushed_and_pulled_bit_by_bit(transport_case: TransportCase, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(50_000_000))
    transport_case.transport.push(source, f"{transport_case.folder}/file")
    pulled = pull_file(transport_case.transport, f"{transport_case.folder}/file", 50_000_000, back)
    assert source.read_bytes() == (transport_case.here / "file").read_bytes() == pulled


def test_a_folder_is_pushed_and_pulled_with_all_its_contents(transport_case: TransportCase, tmp_path: Path) -> None:
    contents = {"file": b"1", "empty": b"", **{f"inner/{name}": os.urandom(1000) for name in NAMES}, "a/b/c": b"deep"}
    for name, content in contents.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(content)
    transport_case.transport.push(tmp_path / "source", f"{transport_case.folder}/new/folder")
    sizes = {name: len(content) for name, content in contents.items()}
    transport_case.transport.pull(f"{transport_case.folder}/new/folder", sizes, tmp_path / "back")
    for folder in (transport_case.here / "new" / "folder", tmp_path / "back"):
        copied = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert copied == contents
    assert [path.name for path in (transport_case.here / "new").iterdir()] == ["folder"]


def test_a_folder_replaces_nothing(transport_case: TransportCase, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "new").touch()
    for name in ("file", "folder"):
        (transport_case.here / name).touch() if name == "file" else (transport_case.here / name).mkdir()
        with pytest.raises(DeviceError, match=rf"{name}\b"):
            transport_case.transport.push(tmp_path / "source", f"{transport_case.folder}/{name}")
    assert sorted(path.name for path in transport_case.here.rglob("*")) == ["file", "folder"]


def test_several_threads_use_one_device_at_once(transport_case: TransportCase, tmp_path: Path) -> None:
    def there_and_back(number: int) -> bool:
        content, source, back = os.urandom(200_000), tmp_path / f"source {number}", tmp_path / f"back {number}"
        source.write_bytes(content)
        transport_case.transport.push(source, f"{transport_case.folder}/{number}")
        printed = transport_case.run(["cat", f"{transport_case.folder}/{number}"])
        pulled = pull_file(transport_case.transport, f"{transport_case.folder}/{number}", 200_000, back)
        return printed.stdout == content == pulled

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(there_and_back, range(12))) == [True] * 12


def test_a_file_replaces_another(transport_case: TransportCase, tmp_path: Path) -> None:
    for content in (b"long old content", b"new"):
        (tmp_path / "source").write_bytes(content)
        transport_case.transport.push(tmp_path / "source", f"{transport_case.folder}/file")
        assert (transport_case.here / "file").read_bytes() == content


def test_a_file_is_visible_complete_or_not_at_all(transport_case: TransportCase, tmp_path: Path) -> None:
    size = 20_000_000
    source, remote = tmp_path / "source", transport_case.here / "file"
    pulled: list[Path] = []
    source.write_bytes(bytes(size))
    sizes: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            sizes.extend(path.stat().st_size for path in (remote, *pulled) if path.exists())

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(look)
        for number in range(5):
            transport_case.transport.push(source, f"{transport_case.folder}/file")
            back = tmp_path / str(number)
            pulled.append(back / "file")
            transport_case.transport.pull(transport_case.folder, {"file": size}, back)
        ended.set()
        watching.result()
    assert len(sizes) > 5
    assert set(sizes) == {size}


def test_a_failed_push_leaves_nothing_behind(transport_case: TransportCase, tmp_path: Path) -> None:
    (transport_case.here / "in the way").mkdir()
    (transport_case.here / "in the way" / "file").touch()
    (tmp_path / "source").write_bytes(b"content")
    with pytest.raises(DeviceError, match=r"in the way"):
        transport_case.transport.push(tmp_path / "source", f"{transport_case.folder}/in the way")
    assert [path.name for path in transport_case.here.rglob("*")] == ["in the way", "file"]


def test_a_missing_file_is_an_error_that_names_it(transport_case: TransportCase, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no such source"):
        transport_case.transport.push(tmp_path / "no such source", f"{transport_case.folder}/file")
    with pytest.raises(DeviceError, match="no such file here"):
        transport_case.transport.pull(transport_case.folder, {"no such file here": 1}, tmp_path / "back")
    assert list(transport_case.here.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["on the device"]


def test_a_command_returns_its_exit_code_and_both_streams_apart(transport_case: TransportCase) -> None:
    code = "import sys; sys.stdout.buffer.write(b'out\\xff\\0'); sys.stderr.buffer.write(b'err\\r\\n'); sys.exit(37)"
    result = transport_case.run(python(code))
    assert (result.argv, result.exit_code) == (tuple(python(code)), 37)
    assert (result.stdout, result.stderr) == (b"out\xff\0", b"err\r\n")
    assert result.seconds > 0


def test_megabytes_on_both_streams_do_not_block(transport_case: TransportCase) -> None:
    code = "import sys; sys.stdout.write('o' * 8_000_000); sys.stderr.write('e' * 8_000_000)"
    result = transport_case.run(python(code))
    assert (len(result.stdout), len(result.stderr), result.exit_code) == (8_000_000, 8_000_000, 0)
    assert result.dropped_bytes == 0


def test_only_the_begin_and_the_end_of_a_long_output_are_stored(transport_case: TransportCase) -> None:
    code = "import sys; sys.stdout.write('begin' + 'o' * 50_000_000 + 'end'); sys.stderr.write('errors')"
    result = transport_case.run(python(code))
    notice = f"\n[qnnsweep: {result.dropped_bytes} bytes of this output were dropped here]\n".encode()
    begin, _, end = result.stdout.partition(notice)
    assert (begin[:6], begin[6:].strip(b"o"), end[-4:], end[:-4].strip(b"o")) == (b"begino", b"", b"oend", b"")
    assert len(begin) + result.dropped_bytes + len(end) == 50_000_008
    assert (len(result.stdout) < LIMIT_BYTES + 100, result.stderr, result.exit_code) == (True, b"errors", 0)


@pytest.mark.timeout(120)
def test_a_command_that_prints_without_end_is_killed_at_its_deadline(transport_case: TransportCase) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DeadlinePassed, match="deadline of 3 s") as late:
        transport_case.run(["cat", "/dev/zero"], deadline_s=3)
    assert len(late.value.output) < LIMIT_BYTES + 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize("size", [0, 999, 1001, 50_000_000])
def test_a_file_of_another_size_than_announced_is_not_stored(
    transport_case: TransportCase, tmp_path: Path, size: int
) -> None:
    (transport_case.here / "file").write_bytes(bytes(size))
    with pytest.raises(DeviceError, match=r"cannot pull"):
        transport_case.transport.pull(transport_case.folder, {"file": 1000}, tmp_path / "new" / "back")
    assert list((tmp_path / "new").iterdir()) == []


def test_only_the_requested_files_are_pulled(transport_case: TransportCase, tmp_path: Path) -> None:
    for name in ("a", "in/b", "in/c", "other", "in/other"):
        (transport_case.here / name).parent.mkdir(exist_ok=True)
        (transport_case.here / name).write_bytes(name.encode())
    transport_case.transport.pull(transport_case.folder, {"in/c": 4, "a": 1, "in/b": 4}, tmp_path / "back")
    pulled = {
        str(path.relative_to(tmp_path / "back")): path for path in (tmp_path / "back").rglob("*") if path.is_file()
    }
    assert {name: path.read_text() for name, path in pulled.items()} == {"a": "a", "in/b": "in/b", "in/c": "in/c"}


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_command_that_a_signal_ends_returns_its_number(transport_case: TransportCase, number: signal.Signals) -> None:
    code = (
        f"import resource, os; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {number.value})"
    )
    assert transport_case.run(python(code)).exit_code == -number


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(st.sampled_from(HOSTILE) | words, min_size=1, max_size=8))
def test_every_argument_arrives_unchanged(transport_case: TransportCase, arguments: list[str]) -> None:
    result = transport_case.run(python(SAY_ARGUMENTS, *arguments))
    assert result.stdout.split(b"\0") == [argument.encode() for argument in arguments]


def test_every_hostile_argument_arrives_unchanged(transport_case: TransportCase) -> None:
    result = transport_case.run(python(SAY_ARGUMENTS, *HOSTILE))
    assert result.stdout.split(b"\0") == [argument.encode() for argument in HOSTILE]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_runs_in_the_requested_folder(transport_case: TransportCase, name: str) -> None:
    (transport_case.here / name).mkdir()
    code = "from pathlib import Path; Path('was here').touch()"
    assert transport_case.run(python(code), folder=f"{transport_case.folder}/{name}").exit_code == 0
    assert [path.name for path in (transport_case.here / name).iterdir()] == ["was here"]


def test_a_command_gets_the_requested_environment_and_no_other(
    transport_case: TransportCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNSWEEP_SECRET", "of this machine")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/this/machine")
    variables = {"PLAIN": "1", "HOSTILE": "it's $(x)\n;\"é", "PATH": os.environ["PATH"]}
    code = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))"
    changed, default = (
        dict(line.split("=", 1) for line in result.stdout.decode().split("\0"))
        for result in (
            transport_case.run(python(code), environment=environment or {}) for environment in (variables, None)
        )
    )
    assert {name: changed.get(name) for name in variables} == variables
    assert set(changed) == set(default) | set(variables)
    assert not {"QNNSWEEP_SECRET", "LD_LIBRARY_PATH"} & set(default)


def test_a_command_has_an_empty_input(transport_case: TransportCase) -> None:
    result = transport_case.run(python("import sys; print(len(sys.stdin.read()))"))
    assert (result.exit_code, result.stdout) == (0, b"0\n")


GRANDCHILD = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("pids").write_text(str(child.pid))
time.sleep({sleep})
"""


@pytest.mark.timeout(120)
def test_at_the_deadline_the_command_and_its_children_are_killed(transport_case: TransportCase) -> None:
    with pytest.raises(DeviceError) as late:
        transport_case.run(python(GRANDCHILD.format(sleep=600)), deadline_s=2, folder=transport_case.folder)
    assert sys.executable in str(late.value)
    assert "deadline of 2 s" in str(late.value)
    assert_dead(int((transport_case.here / "pids").read_text()), within_s=20)


def test_processes_that_a_command_leaves_are_killed_at_its_end(transport_case: TransportCase) -> None:
    result = transport_case.run(python(GRANDCHILD.format(sleep=0)), folder=transport_case.folder)
    assert result.exit_code == 0
    assert_dead(int((transport_case.here / "pids").read_text()), within_s=20)


def test_processes_with_their_own_session_are_killed_at_the_end_of_a_local_command(tmp_path: Path) -> None:
    case = TransportCase(transport=LocalTransport(), folder=str(tmp_path), here=tmp_path)
    started = "(setsid sh -c 'setsid sleep 600 & echo $! >pid; wait' &) ; until [ -s pid ]; do sleep 0.01; done"
    assert case.run(["sh", "-c", started], folder=case.folder).exit_code == 0
    assert_dead(int((tmp_path / "pid").read_text()), within_s=20)
    (tmp_path / "pid").unlink()
    with pytest.raises(DeadlinePassed):
        case.run(["sh", "-c", f"{started}; wait; sleep 600"], folder=case.folder, deadline_s=2)
    assert_dead(int((tmp_path / "pid").read_text()), within_s=20)


def test_a_missing_program_or_folder_is_an_error_that_names_it(transport_case: TransportCase) -> None:
    with pytest.raises(DeviceError, match="no-such-program"):
        transport_case.run(["no-such-program"])
    with pytest.raises(DeviceError, match="no such folder"):
        transport_case.run(python(""), folder=f"{transport_case.folder}/no such folder")


def test_every_configurable_transport_fulfils_this_contract() -> None:
    usable = {kind.name for kind in TransportKind if hasattr(transport_of(kind), "identity")}
    assert {kind.name for kind in TransportKind} == usable == {*TRANSPORTS}

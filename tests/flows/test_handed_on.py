"""What people hand on does not tell of its maker: no home folder, no host, no secret."""

from __future__ import annotations

import gzip
import io
import re
import socket
import zipfile
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from qnnsweep.tasks.records.source_lines import line_in_words, portable, users_line
from tests.flows.small_net import CONFIGURATION, MODULE
from tests.flows.sweep_outputs import passed_result_of
from tests.program import Program

SECRET = "planted-token-7391"
NET = MODULE.replace(
    "    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))\n", "    model = Net()\n"
)
NET += """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(16, 5)

    def forward(self, image):
        return self.head(self.conv(image).relu().flatten(1))
"""


def texts(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file, and what is packed inside it, as bytes to search."""
    yield name, data
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from texts(f"{name}/{member}", archive.read(member))
    if data.startswith(b"PAR1"):
        yield f"{name} (rows)", str(pq.ParquetFile(io.BytesIO(data)).read().to_pylist()).encode()
    for packed in re.findall(rb'<script type="application/gzip"[^>]*>([^<]+)<', data):
        yield f"{name} (data)", gzip.decompress(b64decode(packed))


def told(folders: list[Path], words: list[str]) -> list[str]:
    """Return the files that contain one of the words, with the text around it."""
    pattern = re.compile("|".join(map(re.escape, words)).encode())
    found = []
    for file in (file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()):
        for name, data in texts(file.name, file.read_bytes()):
            found += [f"{name}: {data[max(0, m.start() - 60) : m.end() + 40]!r}" for m in pattern.finditer(data)][:1]
    return found


@pytest.mark.slow
@pytest.mark.toolchain
def test_programs_reports_and_tables_tell_nothing_of_their_maker(served_program: Program, tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice-the-maker"
    project = home / "project"
    (project / "model").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "small_net.py").write_text(NET)
    (project / "model" / "small_net.yaml").write_text(CONFIGURATION)
    environment = served_program.environment | {"HOME": str(home), "API_TOKEN": SECRET, "USER": "alice-the-maker"}
    program = replace(served_program, environment=environment, folder=home)
    words = ("model=small_net", "scheme=8a8w", "soc=SM8650", "measure.operator_samples=1", "measure.profile_level=2")
    place = (f"--config-dir={project}", f"artifacts={home}/store", f"+device.environment.API_TOKEN={SECRET}")
    run = passed_result_of(program.run("run", "--json", *words, *place))["run_id"]
    results = home / "store" / "runs" / run
    handed_on = [home / "store" / "tables", *results.rglob("report.html"), *(results / "files").rglob("*.pte")]
    files = [*(results / "files").rglob("etrecord.bin"), *(results / "files").rglob("*.pt2")]
    files += [*(results / "files").rglob("lowered.parquet"), *(results / "files").rglob("*.txt")]
    assert len(files) >= 4
    (tmp_path / "given").mkdir()
    for number, file in enumerate([*files, *handed_on[1:]]):
        (tmp_path / "given" / f"{number}-{file.name}").hardlink_to(file)
    names = ["alice-the-maker", SECRET, str(tmp_path)]
    names += [socket.gethostname()] if len(socket.gethostname()) > 6 else []
    assert told([home / "store" / "tables", tmp_path / "given"], names) == []
    (lines, *_) = {row["stack_trace"] for row in pq.read_table(home / "store" / "tables" / "operators").to_pylist()} - {
        ""
    }
    assert lines.startswith('  File "small_net.py", line ')


TRACE = """\
  File "/home/me/venv/lib/python3.11/site-packages/torch/_dynamo/functional_export.py", line 232, in forward
    res = self._export_root(*args, **kwargs)
  File "{folder}/net.py", line 8, in forward
    x = self.block(x)
        ^^^^^^^^^^^^^
  File "/home/me/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 9, in relu
    return torch.relu(input)
"""
MARKERS = {".git": "nets/net.py", "pyproject.toml": "nets/net.py", "": "net.py"}


@pytest.mark.parametrize(("marker", "shown"), MARKERS.items())
def test_a_trace_begins_at_the_users_code_and_its_files_are_relative(tmp_path: Path, marker: str, shown: str) -> None:
    (tmp_path / "nets").mkdir()
    if marker:
        (tmp_path / marker).touch()
    trace = TRACE.format(folder=tmp_path / "nets")
    inner = '  File "site-packages/torch/nn/functional.py", line 9, in relu\n    return torch.relu(input)\n'
    user = f'  File "{shown}", line 8, in forward\n    x = self.block(x)\n        ^^^^^^^^^^^^^\n'
    assert portable(trace) == user + inner
    assert portable(portable(trace)) == portable(trace)
    assert users_line(portable(trace)) == (shown, 8)
    assert line_in_words(portable(trace)) == "`x = self.block(x)` (net.py:8)"


def test_a_trace_without_a_users_frame_is_kept_with_relative_files() -> None:
    trace = '  File "/home/me/venv/lib/python3.11/site-packages/timm/net.py", line 3, in forward\n    return x\n'
    assert portable(trace) == trace.replace("/home/me/venv/lib/python3.11/", "")
    assert [portable(text) for text in ("", "line 3")] == ["", ""]

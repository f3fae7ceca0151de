"""The log that the runner for ONNX Runtime writes is an ETDump, for this project's reader and for ExecuTorch's."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.toolchain.ort.log import FullBufferError, Log
from qnnsweep.tasks.toolchain.readback.etdump import ETDump, read_etdump, tensor

DTYPES = ("uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float32", "bool")
SHAPES = st.lists(st.integers(0, 4), max_size=4)


def written(entries: list[list[tuple[str, np.ndarray]]], folder: Path) -> tuple[ETDump, np.ndarray]:
    """Write one inference per list of named tensors. Return what is read back, and the debug buffer."""
    log = Log(folder / "buffer", 2**16)
    for inference in entries:
        log.begin()
        for number, (name, array) in enumerate(inference):
            log.tensor(array, chain=0, instruction=number, name=name)
            log.tensor(array, chain=-1, instruction=0, output=True)
        log.call("DELEGATE_CALL", 0, 5, 9)
        log.end()
    log.write(folder / "etdump")
    return read_etdump((folder / "etdump").read_bytes()), np.fromfile(folder / "buffer", np.uint8)


@given(st.lists(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=3), max_size=3), st.integers(0, 2**32))
def test_each_tensor_is_read_back_as_it_was_logged(cases: list[list[tuple[str, list[int]]]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    entries = [
        [(f"{number}@0", draw.integers(0, 2, shape).astype(dtype)) for number, (dtype, shape) in enumerate(inference)]
        for inference in cases
    ]
    with tempfile.TemporaryDirectory() as folder:
        dump, buffer = written(entries, Path(folder))
    read = [
        (one.run, one.delegate_identifier, one.chain_index, one.is_output, tensor(one, buffer)) for one in dump.tensors
    ]
    expected = [
        (run, *what, array)
        for run, inference in enumerate(entries)
        for name, array in inference
        for what in ((name, 0, False), (None, -1, True))
    ]
    assert [entry[:4] for entry in read] == [entry[:4] for entry in expected]
    for (*_, got), (*_, logged) in zip(read, expected, strict=True):
        assert got.dtype == logged.dtype
        np.testing.assert_array_equal(got, logged)
    assert [event.run for event in dump.events if event.name == "Method::execute"] == [*range(len(cases))]
    calls = [(event.instruction_id, event.start, event.end) for event in dump.events if event.name == "DELEGATE_CALL"]
    assert calls == [(0, 5, 9)] * len(cases)


def test_a_debug_buffer_that_is_too_small_is_said_as_executorch_says_it(tmp_path: Path) -> None:
    log = Log(tmp_path / "buffer", 100)
    log.begin()
    with pytest.raises(FullBufferError, match=r"^Ran out of space to store intermediate outputs\.$"):
        log.tensor(np.zeros(26, np.float32), chain=0, instruction=0)
    assert (tmp_path / "buffer").stat().st_size == 0


_EXECUTORCH_READS = """
import json, sys
from executorch.devtools.inspector._inspector_utils import gen_etdump_object
(run,) = gen_etdump_object(sys.argv[1]).run_data
debug = [event.debug_event for event in run.events if event.debug_event is not None]
print(json.dumps([[entry.delegate_debug_id_str, entry.debug_entry.tensor.sizes] for entry in debug]))
"""


def test_executorchs_own_reader_sees_the_same_tensors(tmp_path: Path) -> None:
    written([[("relu@0", np.zeros((2, 3), np.uint8))]], tmp_path)
    command = [sys.executable, "-c", _EXECUTORCH_READS, str(tmp_path / "etdump")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: Any = json.loads(ran.stdout.splitlines()[-1])
    assert answer == [["relu@0", [2, 3]], [None, [2, 3]]]

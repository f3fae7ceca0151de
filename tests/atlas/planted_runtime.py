"""ONNX Runtime with a fault: it changes a byte of the first output."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.tasks.atlas import in_process
from qnnsweep.tasks.devices.runner_cli import output_file
from qnnsweep.tasks.records import Capture, LoweredProgram


def faulty_control(folder: Path, lowered: LoweredProgram, measure: MeasureConfig) -> Capture:
    healthy = in_process.program.main

    def main() -> int:
        code, output = healthy(), Path(output_file(0, 0))
        data = bytearray(output.read_bytes())
        data[-1] ^= 0x40
        output.write_bytes(data)
        return code

    with mock.patch.object(in_process.program, "main", main):
        return in_process.control_case(folder, lowered, measure)

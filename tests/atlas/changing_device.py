"""A device that changes a code of what some programs return, and the cases to which these programs belong."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from qnnsweep.tasks.records import CompiledCases
from qnnsweep.tasks.storage.codec import decode

_PYTHON = """#!{python} -P
# One code is changed: of uint8, or the exponent of a float. With a shipping program, that of a final output.
import pathlib, subprocess, sys
ended = subprocess.run([{python!r}, *sys.argv[1:]])
program = next((flag.rpartition("/")[2] for flag in sys.argv if flag.startswith("--model_path=")), "ff")
if int(program[:2], 16) < {share} * 256:
    dump = pathlib.Path("debug_output.bin")
    file, at = (dump, 3) if dump.exists() else (pathlib.Path("outputs/output_0_0.raw"), -1)
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)
    with open({log!r}, "a") as log:
        print(program, file=log)
sys.exit(ended.returncode)
"""
Case = tuple[str, str]
"""The name of a case, and its scheme."""


@dataclass(frozen=True, slots=True)
class ChangingDevice:
    """The Python of a device with ONNX Runtime, which changes what a share of the programs return."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, share: float) -> ChangingDevice:
        """Write the program to a folder. `share`: of the programs, of which a case has two."""
        device = cls(folder)
        device._log.touch()
        device._python.write_text(_PYTHON.format(python=sys.executable, share=share, log=str(device._log)))
        device._python.chmod(0o755)
        return device

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of a command that turn the local device into this one."""
        work = f"device.work_folder={self.folder / 'work'}"
        return "device.runner=onnxruntime", f"device.python={self._python}", work

    def changed(self, artifacts: Path) -> set[Case]:
        """Return the cases of which a program was changed. `artifacts`: those of the runs."""
        programs = _programs(artifacts)
        return {case for program in self._log.read_text().splitlines() for case in programs[program]}

    @property
    def _log(self) -> Path:
        return self.folder / "changed.txt"

    @property
    def _python(self) -> Path:
        return self.folder / "python"


def _programs(artifacts: Path) -> dict[str, set[Case]]:
    """Map the digest of every program, as a device with ONNX Runtime gets it, to its cases."""
    found = defaultdict[str, set[Case]](set)
    for file in (artifacts / "results" / "records").iterdir():
        record = decode(file.read_bytes()) if file.name.startswith("compile_cases") else None
        for one in record.cases if isinstance(record, CompiledCases) else ():
            if one.bundle is not None and one.lowered is not None:
                launches = one.bundle.for_onnxruntime().launches
                for launch in launches:
                    found[launch.program.sha256].add((one.case.name, one.lowered.scheme))
    return found

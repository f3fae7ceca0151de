"""The making of a reproducer: the programs are searched, then the folder is filled."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path

from qnnsweep.tasks.errors import QnnsweepError
from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.repro.folder import write_program
from qnnsweep.tasks.repro.program import described
from qnnsweep.tasks.repro.search import SearchResult, Trial, search
from qnnsweep.tasks.repro.texts import environment, in_short, report, tried
from qnnsweep.tasks.repro.trial import RECORDING, record, run_script
from qnnsweep.tasks.repro.variant import Variant

_PACKAGES = ("torch", "executorch", "torchao", "numpy")
_FILES = {
    "repro.py": "builds the program, compiles it, runs it on the HTP simulator and compares its output",
    "inputs.npz": "what the operator read on the device",
    "constants.npz": "weights and other constants",
    "expected.npy": "the right output, rounded to the output's grid",
    "measured.npy": "the output on the device",
    "used.npy": "the elements that some reader uses: only these are compared",
    "environment.txt": "the versions",
    **{f"saver_output/{name}": "Qualcomm's own recording of the compilation" for name in RECORDING},
}
"""What the files are. A file of the twin has `-twin` in its name."""


class NotReproduced(QnnsweepError):
    """No small program shows the error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a case comes from, and how its cell was compiled. `versions`: in addition to those of packages."""

    model: str
    scheme: str
    soc: str
    run_id: str
    sample: int
    floats: bool
    versions: Mapping[str, str]


def make(
    case: Case, source: Source, folder: Path, socs: Mapping[str, int], say: Callable[[str], None]
) -> tuple[SearchResult, str | None]:
    """Search the program and its twin, and write everything into an empty folder.

    `socs`: the architectures of the SoCs that the twin may be compiled for. Return what was found, and why there is no
    recording of QNN's calls, or None. Raises NotReproduced.
    """
    title = f"{case.operator.target} of {source.model} ({source.scheme}, {source.soc}) on the HTP simulator"
    numbers = count(1)

    def attempt(base: Variant, twin: Variant | None) -> Trial:
        attempted = folder / f"trial{next(numbers)}"
        attempted.mkdir()
        write_program(attempted, case, base, twin, title)
        error, failure = run_script(attempted, *(["--twin"] if twin else []))
        shutil.rmtree(attempted)
        outputs = "" if len(base.program.outputs) == 1 else f" ({len(base.program.outputs)} outputs)"
        description = twin.description if twin else described(case.operators, base.program.members) + outputs
        trial = Trial(description=description, error=error, failure=failure or None)
        say(f"  {tried([trial])}")
        return trial

    result = search(case, source.soc, floats=source.floats, socs=socs, attempt=attempt)
    if not isinstance(result, SearchResult):
        raise NotReproduced(
            f"OPERATOR={case.operator.name}: no small program shows its error of {case.error!r}: {in_short(result)}; "
            "to report it, attach the files of the whole cell, in the run's folder `files`"
        )
    write_program(folder, case, result.base, result.twin, title)
    recording = record(folder)
    if recording is not None:
        shutil.rmtree(folder / "saver_output", ignore_errors=True)
    say(f"  Qualcomm's recording: {'saver_output/' if recording is None else recording}")
    _write_texts(case, source, result, recording, folder)
    return result, recording


def _write_texts(case: Case, source: Source, result: SearchResult, recording: str | None, folder: Path) -> None:
    versions = {**{name: metadata.version(name) for name in _PACKAGES}, **source.versions}
    origin = f"run {source.run_id}, {source.model}/{source.scheme}/{source.soc}, sample {source.sample}"
    text = environment(versions, {"reported by": f"qnnsweep {metadata.version('qnnsweep')}", "measured in": origin})
    (folder / "environment.txt").write_text(text)
    written = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    files = {name: _FILES[name.replace("-twin.", ".")] + (" (twin)" if "-twin." in name else "") for name in written}
    (folder / "REPORT.md").write_text(report(case, result, files, text, recording))

"""The functions of the package `qnnsweep`. Each has the effect, the rows and the cache of the command of its name."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnsweep.conf.compose import quoted
from qnnsweep.conf.syntax import key_of
from qnnsweep.flows.api.process import call
from qnnsweep.flows.api.result import PathLike, Run
from qnnsweep.tasks.errors import RequestError

if TYPE_CHECKING:
    import pandas as pd

Names = str | Sequence[str]


class Repair:
    """A repair that has ended. `reached`: whether the target holds; `scheme_file`: the scheme that it found."""

    def __init__(self, found: dict[str, Any], artifacts: str) -> None:
        self.found = found
        """The JSON object of the command `repair`."""
        self.run = Run(found["run_id"], artifacts)
        """The run of all steps."""
        self.reached: bool = found["reached"]
        self.reason: str = found["reason"]
        self.before_snr_db: float | None = found["before_snr_db"]
        self.after_snr_db: float | None = found["after_snr_db"]
        self.changes: list[str] = found["changes"]
        self.scheme_file = Path(found["scheme_file"])
        self.recipe_file = Path(found["recipe_file"])

    @property
    def steps(self) -> "pd.DataFrame":
        """One row per step and SoC: the change, and its predicted and measured gain."""
        return self.run.table("repair")

    @property
    def certificate(self) -> "pd.DataFrame":
        """One row per SoC, before and after: the numbers on samples that the search has not used."""
        return self.run.table("certificate")

    def __repr__(self) -> str:
        numbers = [f"{snr_db:.1f} dB" for snr_db in (self.before_snr_db, self.after_snr_db) if snr_db is not None]
        changes = "".join(f"\n  {change}" for change in self.changes)
        end = "reached" if self.reached else "not reached"
        return f"{end}: {self.reason}\nlowest SNR {' -> '.join(numbers)}{changes}\nrecipe {self.recipe_file}"


class DebugRun(Run):
    """The run of one model that `debug` was given."""

    def __init__(
        self, run_id: str, artifacts: str, request: Sequence[str], overrides: Sequence[str], remarks: Sequence[str]
    ) -> None:
        """`request`: the words of the command line that select the model. `remarks`: about its samples."""
        super().__init__(run_id, artifacts)
        self._request = tuple(request)
        self._overrides = tuple(overrides)
        self.remarks = tuple(remarks)

    def repair(
        self, target_db: float | None = None, *, scheme: str | None = None, soc: str | None = None,
        overrides: Sequence[str] = (), progress: bool = True,
    ) -> Repair:  # fmt: skip
        """Search a scheme with which the lowest SNR is at least `target_db`, and certify it on unseen samples.

        scheme, soc: by default those of the worst cell. overrides: further keys, such as `budget.size_ratio=1.25`;
        those that `debug` was given, such as `device=my_board`, hold here too, unless their key is given again.
        Without `target_db`, they have the target, such as `target.effective_bits=6`.
        """
        worst = self._worst
        cell = [f"scheme={scheme or worst['scheme']}", f"soc={soc or worst['soc']}"]
        words = cell if target_db is None else [*cell, f"target.final_snr_db={target_db}"]
        given = [*words, *overrides]
        kept = [override for override in self._overrides if key_of(override) not in map(key_of, given)]
        return repair(*self._request, *kept, *given, artifacts=self.artifacts, progress=progress)


def debug(
    model: object,
    samples: object = None,
    *,
    scheme: Names = "8a8w",
    soc: Names = "SM8650",
    calibration: object = None,
    name: str | None = None,
    count: int = 8,
    artifacts: PathLike = "artifacts",
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> DebugRun:
    """Compile a model for an NPU, execute it, and find the operator and the cause that cost its accuracy.

    model: a `torch.nn.Module`, also one that is defined in a notebook, or a `torch.export.ExportedProgram`. It is
        exported in evaluation mode here, and stays as it is. Or a word as for `model=` on the command line: the path of
        a `.pt2` file, `timm:resnet18`, `hf:FOLDER`, `llm:FOLDER`, `my_net.py:make`, the name of a configured model.
    samples: a tensor, a tuple of the arguments of `forward`, a dict of them, or a list, a Dataset or a DataLoader of
        these, with labels or without. If there are more than `count`, those between calibrate the scheme. For a model
        that is a word, also a place as for `samples=`; None means its own samples, or random numbers that say so.
    scheme, soc: names of configured schemes and SoCs. Several give a cell per combination; `fp16` needs no calibration.
    calibration: other samples, for the observers of quantized schemes, in the same forms.
    name: the model's name in the tables; by default that of its class.
    count: the most samples that are compared.
    artifacts: the folder of the cache, the tables and the reports.
    overrides: further keys in Hydra's grammar, such as `measure.operator_samples=2`.

    The model and its samples are written to files in `artifacts`; `.facts.command` is the command line that repeats the
    run. Raises RequestError if the model cannot be exported or the samples do not fit it, with the reason and the line.
    """
    if isinstance(model, str | os.PathLike) and (samples is None or isinstance(samples, str | os.PathLike)):
        places = {"samples": samples, "calibration": calibration}
        named = [f"{key}={quoted(os.fspath(place))}" for key, place in places.items() if place is not None]
        request, remarks = [f"model={os.fspath(model)}", *named], ()
    else:
        from qnnsweep.tasks.toolchain.handed_over import hand_over

        folder = Path(artifacts) / "models"
        held = _created(os.fspath(model)) if isinstance(model, str | os.PathLike) else model
        given = hand_over(held, samples, calibration, name=name, most=count, folder=folder)
        request, remarks = [f"--config-dir={given.folder}", f"model={given.name}"], given.remarks
    words = [*request, f"scheme={_joined(scheme, 'scheme')}", f"soc={_joined(soc, 'soc')}"]
    found = _run("run", [*words, *overrides], artifacts, progress)
    return DebugRun(found["run_id"], str(artifacts), request, overrides, remarks)


def run(*overrides: str, artifacts: PathLike = "artifacts", progress: bool = True) -> Run:
    """Run a sweep: every combination of the values of the overrides, such as `"model=digits_cnn", "scheme=8a8w,fp16"`.

    Options of the command line, such as `--config-dir=FOLDER`, are accepted too. Raises RequestError for a wrong one.
    """
    return Run(_run("run", overrides, artifacts, progress)["run_id"], artifacts)


def recompare(run_id: str, *overrides: str, artifacts: PathLike = "artifacts", progress: bool = True) -> Run:
    """Compare a past run again with other tolerances, such as `"tolerance=none"`. Nothing is compiled or executed."""
    found = _run("recompare", [f"--run={run_id}", *overrides], artifacts, progress)
    return Run(found["run_id"], artifacts)


def repair(*overrides: str, artifacts: PathLike = "artifacts", progress: bool = True) -> Repair:
    """Search a scheme that reaches a target, such as `"target.final_snr_db=30"`, and certify it on unseen samples."""
    return Repair(_run("repair", overrides, artifacts, progress), str(artifacts))


def open_run(run_id: str = "latest", *, artifacts: PathLike = "artifacts") -> Run:
    """Return a past run: an id, the beginning of an id, `latest` or `previous`. Raises RequestError for others."""
    from qnnsweep.flows.runs.names import resolve
    from qnnsweep.tasks.storage.store import Store

    return Run(resolve(Store.at(str(artifacts)), run_id), artifacts)


def plan(*overrides: str, artifacts: PathLike = "artifacts") -> dict[str, Any]:
    """Return the cells that a run of these overrides would have, how long it takes, and how much it compiles."""
    return _run("plan", overrides, artifacts, progress=False)


def diff(
    run_a: PathLike, run_b: PathLike, *, programs: bool = False, artifacts: PathLike = "artifacts"
) -> dict[str, Any]:
    """Compare two runs, cell by cell and operator by operator, or two `.pte` files. Return what changed.

    programs: whether the programs of the runs are compared, and not their numbers.
    """
    options = ["--programs"] if programs else []
    return _run("diff", [str(run_a), str(run_b), *options], artifacts, progress=False)


def inspect(
    program: PathLike, *, etrecord: PathLike | None = None, etdump: PathLike | None = None,
    debug_buffer: PathLike | None = None, inputs: PathLike | None = None, method: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what a program (`.pte`) contains that anyone has made, as lists of rows: methods, delegates, tensors …

    The program is read, and not executed. With `etrecord`, `etdump` and `debug_buffer` of an execution, its operators
    are compared too: `compared_operators`. `etrecord` can be the file of `torch.export.save` (`.pt2`), for the outputs
    alone. `method`: the method that was executed, if the program has several. Raises RequestError if a file cannot be
    read, or if files do not fit.
    """
    files = {"etrecord": etrecord, "etdump": etdump, "debug-buffer": debug_buffer, "inputs": inputs}
    values = {**files, "method": method}
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return call(["inspect", str(program), *options], progress=False)


def qualify(*words: str, artifacts: PathLike = "artifacts", progress: bool = True) -> dict[str, Any]:
    """Compare a QNN release with the present one: what got worse. `words`: as for `qnnsweep qualify`."""
    return _run("qualify", words, artifacts, progress)


def bisect(
    bad: str, good: str, *words: str, artifacts: PathLike = "artifacts", progress: bool = True
) -> dict[str, Any]:
    """Search the commit, pass or option that makes a good cell bad, and certify it. `words`: further options."""
    return _run("bisect", [bad, good, *words], artifacts, progress)


def atlas(*overrides: str, artifacts: PathLike = "artifacts", progress: bool = True) -> dict[str, Any]:
    """Measure which operators of a collection can be used, and how well. `overrides`: as for `qnnsweep atlas`."""
    return _run("atlas", overrides, artifacts, progress)


def repro(
    cell: str, operator: str | None = None, *, run_id: str | None = None, to: PathLike | None = None,
    artifacts: PathLike = "artifacts", progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Write a folder with the smallest program that shows an operator's error, for others to run without qnnsweep.

    run_id: of the run; by default the latest that has the cell.
    """
    words = [cell, *([operator] if operator else []), *_run_of(run_id), *([f"--to={to}"] if to else [])]
    return _run("repro", words, artifacts, progress)


def simulate(
    cell: str, samples: PathLike | None = None, *, method: str | None = None, run_id: str | None = None,
    artifacts: PathLike = "artifacts",
) -> dict[str, Any]:  # fmt: skip
    """Evaluate many samples as the device would compute them, on the host. Return the accuracy and the lowest SNR.

    samples: a .npy, .npz or .safetensors file; by default the samples with which the cell was measured. method: the
    one whose outputs count; by default all. run_id: of the run; by default the latest that has the cell.
    """
    words = [cell, *_run_of(run_id), *([f"--samples={samples}"] if samples else [])]
    words += [f"--method={method}"] if method else []
    return _run("simulate", words, artifacts, progress=False)


def tensors(
    run_id: str, cell: str, operator: str, *, sample: int | None = None, to: PathLike | None = None,
    artifacts: PathLike = "artifacts",
) -> dict[str, Any]:  # fmt: skip
    """Return the tensors of one operator, on the device and on the host, as arrays in PyTorch's layout, by name.

    to: the file that is written; by default a temporary one.
    """
    import tempfile

    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tensors.npz") if to is None else Path(to)
        options = [f"--to={file}", *([] if sample is None else [f"--sample={sample}"])]
        _run("tensors", [run_id, cell, operator, *options], artifacts, progress=False)
        with np.load(file) as arrays:
            return dict(arrays)


def _created(word: str) -> object:
    """Return the module that a word selects, as on the command line. Raises RequestError."""
    from qnnsweep.conf.load import load
    from qnnsweep.tasks.toolchain.user_code import created_module

    return created_module(load([f"model={word}"]).cells[0].request.model)


def _run(command: str, words: Sequence[str], artifacts: PathLike, progress: bool) -> dict[str, Any]:
    return call([command, *words, f"--artifacts={Path(artifacts)}"], progress=progress)


def _run_of(run_id: str | None) -> list[str]:
    return [] if run_id is None else [f"--run={run_id}"]


def _joined(names: Names, key: str) -> str:
    """Return the value of an override that sweeps the names. Raises RequestError if there is none."""
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise RequestError("give at least one name", key=key)
    return ",".join(listed)

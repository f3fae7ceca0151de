"""The files of a reproducer that people read: environment.txt, and REPORT.md in the words of ExecuTorch's bug form."""

import platform
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qnnsweep.tasks.numerics.dequantize import dequantize
from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.repro.folder import quantity
from qnnsweep.tasks.repro.program import described
from qnnsweep.tasks.repro.search import SearchResult, Trial

_WORST = 5


def environment(versions: Mapping[str, str], source: Mapping[str, str]) -> str:
    """Return the content of environment.txt. `versions`: of packages. `source`: where the case comes from."""
    system = {"platform": platform.platform(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver())}
    return "".join(f"{name}: {value}\n" for name, value in {**versions, **system, **source}.items())


def report(
    case: Case, result: SearchResult, files: Mapping[str, str], environment_text: str, recording: str | None
) -> str:
    """Return the content of REPORT.md. `files`: what each file is. `recording`: why there is none, or None."""
    base, twin = result.base, result.twin
    names = described(case.operators, base.program.members)
    count = len(base.program.members)
    kind = "16-bit floats" if base.floats else "quantized values"
    unit = " steps of its grid" if base.qparams else ""
    exactly = (
        "the same number, to the last bit, as in the whole model"
        if result.error == case.error
        else f"in the whole model, the error is {case.error!r}"
    )
    described_bug = (
        f"The QNN backend computes `{case.operator.name}` wrongly on its own inputs, in {kind}. The program has "
        f"{count} operator{'' if count == 1 else 's'}: {names}. The inputs, weights and grids are those of a model "
        f"that was compiled for {base.soc}. The largest error is {result.error!r}{unit}: {exactly}."
    )
    lines = [
        f"# `{case.operator.target}` on the HTP simulator ({base.soc}) differs by {result.error!r}{unit}",
        "",
        "### 🐛 Describe the bug",
        "",
        described_bug,
        "",
        "The elements with the largest errors:",
        "",
        *_worst_elements(case),
        "",
        "```",
        f"python repro.py            # prints {quantity(base)}: {result.error!r}, and exits with 1",
        *(
            [f"python repro.py --twin     # prints {result.twin_error!r}, and exits with 0: {twin.description}"]
            if twin
            else []
        ),
        "```",
        "",
        "The module, whose values are on the grids that the quantizer chose:",
        "",
        "```python",
        f"class Program(Module):\n{base.program.forward}",
        "```",
        "",
        f"The nearest change that is right: {twin.description}." if twin else "No change was found that is right.",
        "",
        "The programs that were tried:",
        "",
        *(_tried(trial) for trial in result.trials),
        "",
        "The files:",
        "",
        *(f"- `{name}`: {text}" for name, text in files.items()),
        *([] if recording is None else [f"- There is no recording of QNN's calls: {recording}"]),
        "",
        "### Versions",
        "",
        "The form asks for the output of `collect_env.py`; `python -m torch.utils.collect_env` prints it too.",
        "",
        "```",
        environment_text.rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def tried(trials: Sequence[Trial]) -> str:
    """Return the programs that were tried, in one line."""
    return "; ".join(_tried(trial).removeprefix("- ") for trial in trials)


def in_short(trials: Sequence[Trial]) -> str:
    """Return how many programs were tried, with the largest error, and why others did not run."""
    errors = [trial.error for trial in trials if trial.error is not None]
    failures = [trial.failure for trial in trials if trial.error is None]
    words = f"of {len(errors)} that ran, the largest error is {max(errors)!r}" if errors else "none ran"
    return f"{words}; {len(failures)} did not run, the first because of: {failures[0]}" if failures else words


def _tried(trial: Trial) -> str:
    return f"- {trial.description}: {trial.failure if trial.error is None else repr(trial.error)}"


def _worst_elements(case: Case) -> Iterator[str]:
    """Yield a table of the elements that are most wrong, in the unit of the operator's value."""
    sides = [np.asarray(side.elements) for side in (case.expected, case.measured)]
    errors = np.abs(sides[1].astype(np.float64) - sides[0].astype(np.float64))
    if case.used is not None:
        errors = np.where(case.used, errors, 0.0)
    qparams = case.measured.qparams
    values = sides if qparams is None else [dequantize(side, qparams) for side in sides]
    order = np.argsort(-np.nan_to_num(errors, nan=np.inf).reshape(-1), kind="stable")[:_WORST]
    yield "| element | expected | measured |"
    yield "|---|---|---|"
    for flat in order:
        at = tuple(int(position) for position in np.unravel_index(flat, errors.shape))
        yield f"| {list(at)} | {values[0][at]:.6g} | {values[1][at]:.6g} |"

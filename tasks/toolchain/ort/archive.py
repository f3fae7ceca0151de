"""The runner without ExecuTorch's runtime as one file: a zip archive, which Python starts like a program."""

import inspect
import io
import zipfile
from pathlib import Path

from qnnsweep.tasks.records import hosted, waiting
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.ort import hub, kernels, log, program, sessions

_START = "import sys\n\nfrom qnnsweep.tasks.toolchain.ort.program import main\n\nsys.exit(main())\n"
_TIME = (1980, 1, 1, 0, 0, 0)


def onnx_runner() -> bytes:
    """Return the archive. Equal source code gives equal bytes."""
    files = {"__main__.py": _START}
    for module in (waiting, hosted, runner, kernels, log, sessions, hub, program):
        path = Path(module.__name__.replace(".", "/"))
        files |= {f"{folder}/__init__.py": "" for folder in reversed(path.parents[:-1])}
        files[f"{path}.py"] = inspect.getsource(module)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        for name, text in files.items():
            written.writestr(zipfile.ZipInfo(name, _TIME), text)
    return archive.getvalue()

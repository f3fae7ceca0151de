"""The folder of a reproducer: repro.py with its arrays, and the files for people."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.repro.search import limit_of
from qnnsweep.tasks.repro.variant import Variant

Array = NDArray[Any]

SCRIPT = "repro.py"
_TEMPLATE = Path(__file__).with_name("repro.py.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """One setting of a program in repro.py: its Python text, and the file that it names."""

    text: str
    content: object
    """Settings with equal contents are equal."""
    file: str | None = None


def write_program(folder: Path, case: Case, base: Variant, twin: Variant | None, title: str) -> None:
    """Write repro.py and the arrays that it reads. `folder` exists."""
    settings = _settings(base, "Program", "")
    of_twin = {} if twin is None else _settings(twin, "Twin", "-twin")
    changed = {key: setting for key, setting in of_twin.items() if setting.content != settings[key].content}
    for setting in (*settings.values(), *changed.values()):
        if setting.file is not None and isinstance(setting.content, bytes):
            (folder / setting.file).write_bytes(setting.content)
    np.save(folder / "measured.npy", np.ascontiguousarray(case.measured.elements))
    classes = [("Program", base), *([("Twin", twin)] if twin is not None and "program" in changed else [])]
    script = Template(_TEMPLATE.read_text()).substitute(
        title=_plain(title),
        quantity=quantity(base),
        twin_description="no such change was found" if twin is None else _plain(twin.description),
        programs="\n\n\n".join(f"class {name}(Module):\n{variant.program.forward}" for name, variant in classes),
        grid_of=_plain(case.operator.name),
        settings=f"REPRO = {_dict(settings)}\nTWIN = "
        + ("None" if twin is None else f"REPRO | {_dict(changed)}" if changed else "REPRO"),
        limit=repr(limit_of(case.error)),
        measured=f"{case.error!r}",
    )
    (folder / SCRIPT).write_text(script)


def quantity(base: Variant) -> str:
    """Return what repro.py prints."""
    return "the largest error in steps of the output's grid" if base.qparams else "the largest absolute error"


def _settings(variant: Variant, name: str, suffix: str) -> dict[str, _Setting]:
    qparams = variant.qparams
    output_grid = None if qparams is None else (qparams.scale[0], qparams.zero_point[0])
    values = {"soc": variant.soc, "floats": variant.floats, "grid": output_grid}
    files = {
        f"inputs{suffix}.npz": _packed(variant.program.inputs),
        f"constants{suffix}.npz": _packed(variant.program.constants),
        f"expected{suffix}.npy": _saved(variant.expected),
        f"used{suffix}.npy": None if variant.used is None else _saved(variant.used),
    }
    settings = {"program": _Setting(text=name, content=variant.program.forward)}
    settings |= {key: _Setting(text=repr(value), content=value) for key, value in values.items()}
    for file, content in files.items():
        named = None if content is None else file
        settings[file.partition(".")[0].removesuffix(suffix)] = _Setting(text=repr(named), content=content, file=named)
    return settings


def _dict(settings: Mapping[str, _Setting]) -> str:
    return f"dict({', '.join(f'{key}={setting.text}' for key, setting in settings.items())})"


def _packed(arrays: Mapping[str, Array]) -> bytes:
    """Return a .npz file. Equal arrays give equal bytes."""
    file = io.BytesIO()
    np.savez_compressed(file, **{name: np.ascontiguousarray(x) for name, x in arrays.items()})  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _saved(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()


def _plain(text: str) -> str:
    """Return text that ends no docstring and continues no line."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")

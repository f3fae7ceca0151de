"""A saved program that contains more than data is refused, and none of it runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage.store import Store

if TYPE_CHECKING:
    from qnnsweep.tasks.records import Blob

pytestmark = pytest.mark.toolchain

Files = dict[str, bytes]
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def saved(value: object) -> bytes:
    import torch

    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def pickled_inputs(files: Files, evil: Evil) -> None:
    files["data/sample_inputs/model.pt"] = saved((evil,))


def pickled_weight(files: Files, evil: Evil) -> None:
    config = json.loads(files[WEIGHTS])
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    files[WEIGHTS] = json.dumps(config).encode()
    files[f"data/weights/{first['path_name']}"] = saved(evil)


def pickled_constant(files: Files, evil: Evil) -> None:
    constant = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    files[CONSTANTS] = json.dumps({"config": {"x": constant}}).encode()
    files["data/constants/opaque_obj_0"] = pickle.dumps(evil)


def compiled_library(files: Files, _: Evil) -> None:
    files["data/aotinductor/model/model.so"] = b"\x7fELF"


def evaluated_expression(files: Files, evil: Evil) -> None:
    letters = "+".join(f"chr({ord(letter)})" for letter in f"__import__('os').mkdir({str(evil.path)!r})")
    size = {"as_expr": {"expr_str": f"eval({letters})", "hint": None}}
    model = files["models/model.json"].decode()
    assert '{"as_int": 3}' in model
    files["models/model.json"] = model.replace('{"as_int": 3}', json.dumps(size)).encode()


def program(store: Store, folder: Path, change: Callable[[Files, Evil], None] | None) -> Blob:
    """Store a small program, of whose archive `change` changes the files."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    path = folder / "program.pt2"
    torch.export.save(torch.export.export(model, (torch.ones(2, 3),), strict=True), path)
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        files = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    if change is not None:
        change(files, Evil(folder / "ran"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{root}/{name}", data)
    return store.put_file(path)


@pytest.mark.parametrize(
    "change", [pickled_inputs, pickled_weight, pickled_constant, compiled_library, evaluated_expression]
)
def test_code_in_a_saved_program_never_runs(tmp_path: Path, change: Callable[[Files, Evil], None]) -> None:
    from qnnsweep.tasks.toolchain.saved_program import load_program

    store = Store(tmp_path / "artifacts")
    blob = program(store, tmp_path, change)
    with pytest.raises(EvidenceError, match=f"^{blob.sha256} contains "):
        load_program(store, blob)
    assert not (tmp_path / "ran").exists()


def test_a_program_of_data_computes_what_it_did(tmp_path: Path) -> None:
    import torch

    from qnnsweep.tasks.toolchain.saved_program import load_program

    store = Store(tmp_path / "artifacts")
    before = dict(os.environ)
    loaded = load_program(store, program(store, tmp_path, None)).module()
    assert loaded(torch.ones(2, 3)).shape == (2, 2)
    assert dict(os.environ) == before

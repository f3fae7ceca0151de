"""A model that a Python process holds, as files from which `qnnsweep run` repeats its run.

The module is exported in the process that holds it, because its class may be defined in a notebook. The files are a
program, its samples and the configuration of the model. The name of their folder is the digest of their content.
"""

import copy
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml
from safetensors.torch import save
from torch.export import ExportedProgram

from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage.atomic import make_folder, write_atomically
from qnnsweep.tasks.toolchain.export import by_name, checked_program
from qnnsweep.tasks.toolchain.float32 import in_float32, other_floats
from qnnsweep.tasks.toolchain.given_samples import MOST_CALIBRATION, MOST_UNSEEN, Divided, divided, given_samples
from qnnsweep.tasks.toolchain.methods import Method, sampled_method, without_float64
from qnnsweep.tasks.toolchain.user_code import usable_module

_READER = "qnnsweep.tasks.models.program_file"
_DIGITS = 12  # of the digest, in the name of a folder


@dataclass(frozen=True, kw_only=True, slots=True)
class HandedOver:
    """A folder for `--config-dir`, and the name of the model in it. `remarks`: what was decided about its samples."""

    folder: Path
    name: str
    remarks: tuple[str, ...]


def hand_over(
    model: object, samples: object, calibration: object, *, name: str | None, most: int, folder: Path
) -> HandedOver:
    """Write a model and its samples to a new folder in `folder`, unless a folder with this content exists.

    model: a module, which is exported in evaluation mode and stays as it is, or an exported program.
    samples, calibration: see `given_samples`. Without `calibration`, the samples are divided.
    most: the largest number of evaluation samples.

    Raises RequestError if the model or a sample is wrong, or if torch.export fails.
    """
    module = usable_module(model, "model: is")
    name = name or _name_of(model)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise RequestError("a name consists of letters, digits, '_', '-' and '.'", key="name", value=name)
    use, remark = _divided(samples, calibration, module, most)
    config = ModelConfig(name=name, factory=f"{type(model).__module__}:{type(model).__qualname__}")
    evaluation = [*use.evaluation, *use.unseen]
    given = {"evaluation": ("samples:", evaluation), "calibration": ("calibration:", use.calibration)}
    converted = other_floats(module)
    with _as_in_use(module):
        used = in_float32(copy.deepcopy(module)) if converted else module
        method = without_float64(sampled_method(None, config, used, converted, given))
        program, _, _ = checked_program(method, method.arguments("evaluation"))
    written = _written(method, program, len(use.evaluation), folder)
    where = f"On the command line, this is `{shlex.quote(f'--config-dir={written}')} model={name}`."
    what = "Weights" if converted else "Computations"
    remarks = [f"{what} of {', '.join(method.converted)} are converted to float32."] if method.converted else []
    return HandedOver(folder=written, name=name, remarks=(remark, *remarks, where))


def _name_of(model: object) -> str:
    """Return the name of a model in the tables: that of its class, as `my_net` of `MyNet`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(model).__name__)
    return words.lower().strip("_") or "model"


def _divided(samples: object, calibration: object, module: torch.nn.Module, most: int) -> tuple[Divided, str]:
    """Return the samples by their use, and a remark about them."""
    found = given_samples(samples, module, most + MOST_CALIBRATION + MOST_UNSEEN, "samples")
    if calibration is None:
        use = divided(found, most)
        if len(found) == 1:
            return use, "The same sample is compared and calibrates: give more samples, or `calibration=`."
        if len(found) <= most:
            return use, f"The same {len(found)} samples are compared and calibrate: give more, or `calibration=`."
    else:
        others = given_samples(calibration, module, MOST_CALIBRATION, "calibration")
        use = Divided(evaluation=found[:most], calibration=others, unseen=found[most:])
    kept = f", {len(use.unseen)} are kept for the certificate of a repair" if use.unseen else ""
    return use, f"{len(use.evaluation)} samples are compared, {len(use.calibration)} others calibrate{kept}."


@contextmanager
def _as_in_use(module: torch.nn.Module) -> Iterator[None]:
    """Set a module to evaluation mode until the context ends. A program of torch.export has no modes."""
    training = {part: part.training for part in module.modules()}
    if any(training.values()) and not isinstance(module, torch.fx.GraphModule):
        module.eval()
    # The fast path of nn.TransformerEncoder, which torch.export does not take, returns zeros for padded positions.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, was_training in training.items():
            part.training = was_training


def _written(method: Method, program: ExportedProgram, compared: int, folder: Path) -> Path:
    """Write the files of a method, and return their folder. Nothing is written if the folder exists.

    compared: the number of evaluation samples. The further ones are for a certificate.
    """
    splits = ("evaluation", "calibration")
    tensors = {split: save(by_name(method, split)) for split in splits}
    labels = {split: [sample.get("label") for sample in getattr(method, split)] for split in splits}
    digest = hashlib.sha256()
    for part in (method.model.name, *_content(program), *tensors.values(), json.dumps([labels, compared])):
        digest.update(part.encode() if isinstance(part, str) else part)
    final = (folder / f"{method.model.name}-{digest.hexdigest()[:_DIGITS]}").absolute()
    configuration = final / "model" / f"{method.model.name}.yaml"
    if configuration.exists():  # it is written last
        return final
    make_folder(final / "model")
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "program.pt2")
        torch.export.save(program, path)
        write_atomically(final / "program.pt2", path.read_bytes(), partial=final)
    for split, data in tensors.items():
        write_atomically(final / f"{split}.safetensors", data, partial=final)
    text = yaml.safe_dump(_configuration(method, final, labels, compared), sort_keys=False)
    write_atomically(configuration, text.encode(), partial=final)
    return final


def _content(program: ExportedProgram) -> Iterator[str | bytes]:
    """Yield what makes the program: a saved file has other bytes each time."""
    for node in program.graph.nodes:
        modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        yield f"{node.format_node()} {node.meta.get('stack_trace')} {modules}\n"
    yield str(program.graph_signature)
    held = {**program.state_dict, **program.constants}
    tensors = {key: value for key, value in held.items() if isinstance(value, torch.Tensor)}
    for key, value in sorted(tensors.items()):
        yield f"{key} {value.dtype} {tuple(value.shape)}"
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _configuration(
    method: Method, folder: Path, labels: Mapping[str, Sequence[int | None]], compared: int
) -> dict[str, object]:
    """Return the YAML of the model."""
    data = {
        split: {
            "source": f"{_READER}:samples",
            "arguments": {"file": str(folder / f"{split}.safetensors"), "labels": list(known)},
            "count": compared if split == "evaluation" else len(known),
        }
        for split, known in labels.items()
    }
    return {
        "name": method.model.name,
        "factory": f"{_READER}:program",
        "arguments": {"file": str(folder / "program.pt2")},
        "inputs": [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype} for spec in method.model.inputs],
        **data,
        "classifier": any(label is not None for label in labels["evaluation"]),
    }

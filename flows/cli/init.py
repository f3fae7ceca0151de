"""`qnnsweep init`: writes the file of configuration of a model by name, ready to be edited."""

import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage.atomic import write_atomically

if TYPE_CHECKING:
    from qnnsweep.conf.models import DataConfig, ModelConfig
    from qnnsweep.conf.plan import Plan
    from qnnsweep.tasks.records import TensorSpec

_HELP = "Write a file of configuration, ready to be edited: see docs/models.md."
EXITS = "Exit codes: 0 written · 2 nothing was written, and one line says why."

app = typer.Typer(help=_HELP, no_args_is_help=True)

_OF_THE_SAMPLE = "its inputs are those of its first sample"


def model(
    words: Words,
    name_or_path: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_PATH",
            help="A model by name: timm:NAME, torchvision:NAME, hf:FOLDER, hf:CLASS, llm:FOLDER, FILE.py:FUNCTION, "
            "package.module:function or FILE.pt2.",
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Another name of the model.")] = None,
) -> Output:
    """Write the YAML of a model by name, with its inputs, and say the command to run next.

    The model is created and runs on a sample, for its inputs. The file is in the folder `model` of --config-dir, or in
    the current folder. OVERRIDE is samples=…, calibration=…, or a key of the model, such as +model.arguments.size=64.
    """
    from qnnsweep.conf.compose import quoted
    from qnnsweep.conf.load import load

    if len(words.config_dirs) > 1:
        raise RequestError("give one folder; the file is written to it", key="--config-dir")
    if name is not None and not re.fullmatch(r"[\w-]+", name):
        raise RequestError("letters, digits, hyphens and underscores", key="--name", value=name)
    folders = [folder for folder in words.config_dirs if (folder / "model").is_dir()]
    with tempfile.TemporaryDirectory(prefix="qnnsweep-init-") as artifacts:
        overrides = [f"model={quoted(name_or_path)}", *words.overrides, f"artifacts={artifacts}", "scheme=fp32"]
        plan = load([*overrides, "backend=xnnpack"], config_dirs=folders)
        config = _of_name(plan, name_or_path)
        config = replace(config, name=name or config.name)
        file = _file(config.name, words.config_dirs)
        inputs = () if config.methods else _inputs(plan)
    text = _yaml(config, inputs, name_or_path)
    write_atomically(file, text.encode(), partial=file.parent)
    selected = ["--config-dir", str(words.config_dirs[0])] if words.config_dirs else []
    selected += [f"model={file.stem if words.config_dirs else file.name}", "scheme=8a8w", "soc=SM8650"]
    command = f"qnnsweep run {shlex.join(selected)}"
    unknown = "the inputs of its methods follow from its arguments" if config.methods else _OF_THE_SAMPLE
    described = ", ".join(f"{spec.name} {spec.dtype} {'×'.join(map(str, spec.shape))}" for spec in inputs)
    lines = [f"{file}: {described or unknown}", f"Next: {command}"]
    contents = {"file": str(file), "model": config.name, "inputs": _inputs_yaml(inputs), "next": command}
    return Output(contents=contents, parts=lines)


def _of_name(plan: "Plan", word: str) -> "ModelConfig":
    """Return the model of a plan. Raises RequestError if it has a file of configuration already."""
    from qnnsweep.conf.named import named_model

    requests = [cell.request for cell in plan.cells]
    if len(requests) > 1:
        raise RequestError("one file is of one model; give every key one value", key="model", value=word)
    if named_model(word) is None:
        problem = "it has a file of configuration; `qnnsweep list models` says where"
        raise RequestError(problem, key="model", value=word)
    return requests[0].model


def _file(name: str, folders: Sequence[Path]) -> Path:
    """Return the file to write. Raises RequestError if it exists, or if an option that ships has this name."""
    from qnnsweep.conf.options import SHIPPED

    stem = re.sub(r"[^\w-]", "_", name)
    file = folders[0] / "model" / f"{stem}.yaml" if folders else Path(f"{stem}.yaml")
    if file.exists():
        raise RequestError(f"{file} exists; remove it, or choose another name with --name")
    if (SHIPPED / "model" / f"{stem}.yaml").exists():
        raise RequestError(f"a model that ships is named {stem}; choose another name with --name")
    return file


def _inputs(plan: "Plan") -> tuple["TensorSpec", ...]:
    """Create the model in a worker and return its inputs. Raises RequestError."""
    from qnnsweep.conf.backends import make_importable
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.tasks.toolchain import entrypoints

    resources = prepare(plan)
    make_importable(plan.folders)
    config = plan.cells[0].request.model
    return resources.workers.call("export", entrypoints.positional_inputs, config, subject=(config.name,)).value


def _yaml(config: "ModelConfig", inputs: Sequence["TensorSpec"], word: str) -> str:
    import yaml

    contents: dict[str, Any] = {
        "name": config.name,
        "factory": config.factory,
        "arguments": config.arguments,
        "inputs": _inputs_yaml(inputs),
        "calibration": _data_yaml(config.calibration),
        "evaluation": _data_yaml(config.evaluation),
        "classifier": config.classifier,
    }
    heads = [f"# Written by `qnnsweep init model {word}`. docs/models.md describes the keys."]
    if not inputs and not config.methods:
        heads.append("# The inputs are those of the first sample, because forward does not take them by position.")
    body = yaml.safe_dump(contents, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    return "\n".join([*heads, body])


def _inputs_yaml(inputs: Sequence["TensorSpec"]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype} for spec in inputs]


def _data_yaml(data: "DataConfig | None") -> dict[str, Any] | None:
    if data is None:
        return None
    places = {key: data.arguments[key] for key in ("samples", "texts") if data.arguments.get(key)}
    arguments = {"arguments": places} if places else {}
    return {"source": data.source, **arguments, "count": data.count}

"""The samples of a method: what its data sources yield, checked, and as the tensors that its program takes."""

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qnnsweep.conf.errors import did_you_mean, printable
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.conf.named import SOURCE
from qnnsweep.tasks.errors import QnnsweepError, RequestError
from qnnsweep.tasks.toolchain.structures import named_leaves, with_leaves
from qnnsweep.tasks.toolchain.tensors import dtype_name
from qnnsweep.tasks.toolchain.user_code import imported

_KEYWORDS = inspect.Parameter.VAR_KEYWORD.name
Sample = Mapping[str, Any]
_NO_TENSOR = "a value that is no tensor is a constant of the program: give it as a tensor, or the same to every sample"


def sourced(split: str, data: DataConfig) -> list[Sample]:
    """Return what the source of a split yields. Raises RequestError if it fails or yields nothing."""
    source = imported(data.source, f"model.{split}.source")
    key = f"model.{split}.source={data.source}"
    try:
        samples: list[Sample] = list(itertools.islice(source(data.count, **data.arguments), data.count))
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"{key}: {type(error).__name__}: {error}") from error
    if not samples:
        raise RequestError(f"{key}: returned no sample")
    return samples


def given_place(split: str, data: DataConfig) -> str:
    """Return the key and the value that a user gave for the samples of a split, for messages."""
    place = data.arguments.get("samples") if data.source == SOURCE else None
    if place is None:
        return f"model.{split}.source={data.source}"
    is_shared = split == "evaluation" or data.arguments.get("counts") is not None
    return f"{'samples' if is_shared else 'calibration'}={printable(place)}"


def configured_samples(model: ModelConfig, split: str, data: DataConfig) -> list[Sample]:
    """Return the samples of a model that states its inputs, checked. Raises RequestError at the first wrong one."""
    samples = sourced(split, data)
    for number, sample in enumerate(samples):
        _check_sample(model, f"{given_place(split, data)}: sample {number}", sample)
    return samples


def _check_sample(model: ModelConfig, where: str, sample: Sample) -> None:
    inputs, expected = _inputs(where, sample), [spec.name for spec in model.inputs]
    if not isinstance(inputs, Mapping):
        kind = type(inputs).__name__
        raise RequestError(f"{where} has a {kind} as 'inputs'; model.inputs names {expected}: give a dict of these")
    if sorted(inputs) != sorted(expected):
        raise RequestError(f"{where} has the inputs {sorted(inputs)}; model.inputs names {expected}")
    for spec in model.inputs:
        tensor = torch.as_tensor(inputs[spec.name])
        if list(tensor.shape) != list(spec.shape) or dtype_name(tensor.dtype) != spec.dtype:
            raise RequestError(
                f"{where}: input {spec.name} is {_described(tensor)}; model.inputs says {spec.dtype}{list(spec.shape)}"
            )


def _inputs(where: str, sample: Sample) -> Any:
    """Return what a sample has as inputs. Raises RequestError if it has none."""
    if not isinstance(sample, Mapping) or "inputs" not in sample:
        raise RequestError(f"{where} is not a mapping with the key 'inputs'")
    return sample["inputs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTemplate:
    """How a module is called: the arguments of the first evaluation sample, whose tensors are the program's inputs.

    `arguments`: the values by the parameters of `forward`, in their order. `where`: the sample, in words.
    """

    signature: inspect.Signature
    arguments: Mapping[str, Any]
    where: str

    @property
    def inputs(self) -> list[InputConfig]:
        """The inputs of the program."""
        return [
            InputConfig(name=name, shape=list(leaf.shape), dtype=dtype_name(leaf.dtype))
            for name, leaf in self._leaves()
            if isinstance(leaf, torch.Tensor)
        ]

    @property
    def is_plain(self) -> bool:
        """Whether `forward` takes exactly the program's inputs, by position."""
        parameters = [*self.signature.parameters.values()][: len(self.arguments)]
        return [parameter.name for parameter in parameters] == [*self.arguments] and all(
            isinstance(self.arguments[parameter.name], torch.Tensor)
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            for parameter in parameters
        )

    def call(self, tensors: Sequence[torch.Tensor]) -> inspect.BoundArguments:
        """Return the arguments with which `forward` is called on these inputs, with the constants of the template."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for _, leaf in self._leaves()]
        arguments = OrderedDict(with_leaves(dict(self.arguments), iter(leaves)))
        return inspect.BoundArguments(self.signature, arguments)

    def tensors(self, other: "CallTemplate") -> dict[str, torch.Tensor]:
        """Return the inputs of another sample, by name. Raises RequestError if it does not have this structure."""
        expected, found = self._leaves(), other._leaves()
        if (names := [name for name, _ in found]) != (wanted := [name for name, _ in expected]):
            raise RequestError(f"{other.where} has the inputs {names}; {self.where} has {wanted}")
        for (name, first), (_, value) in zip(expected, found, strict=True):
            if isinstance(first, torch.Tensor) and isinstance(value, torch.Tensor):
                if _described(value) != _described(first):
                    raise RequestError(
                        f"{other.where}: input {name} is {_described(value)}; in {self.where} it is {_described(first)}"
                    )
            elif not _is_equal(first, value):
                described = _described(value) if isinstance(value, torch.Tensor) else printable(value)
                of_first = _described(first) if isinstance(first, torch.Tensor) else printable(first)
                raise RequestError(
                    f"{other.where}: input {name} is {described}; in {self.where} it is {of_first}; {_NO_TENSOR}"
                )
        return {name: leaf for name, leaf in found if isinstance(leaf, torch.Tensor)}

    def _leaves(self) -> list[tuple[str, Any]]:
        """Return the parts of all arguments, with their names. Those of `**kwargs` have the names of the keys alone."""
        keywords = [name for name, parameter in self.signature.parameters.items() if parameter.kind.name == _KEYWORDS]
        prefixes = tuple(f"{name}." for name in keywords if name in self.arguments)
        return [
            (name.removeprefix(next(filter(name.startswith, prefixes), "")), leaf)
            for name, leaf in named_leaves(dict(self.arguments))
        ]


def template_of(module: torch.nn.Module, where: str, sample: Sample) -> CallTemplate:
    """Return how a sample calls a module. Raises RequestError if the sample is none, or does not fit `forward`."""
    inputs = _inputs(where, sample)
    signature = inspect.signature(module.forward)
    try:
        if isinstance(inputs, Mapping):
            bound = signature.bind(**inputs)
        else:
            bound = signature.bind(*inputs) if isinstance(inputs, tuple | list) else signature.bind(inputs)
    except TypeError as error:
        names = [*signature.parameters]
        unknown = [str(name) for name in inputs if name not in names] if isinstance(inputs, Mapping) else []
        guess = did_you_mean(unknown[0], names) if unknown else ""
        raise RequestError(f"{where}: {error}; {guess}forward takes {', '.join(names) or 'nothing'}") from error
    arguments = with_leaves(bound.arguments, (_as_tensor(leaf) for _, leaf in named_leaves(bound.arguments)))
    template = CallTemplate(signature=signature, arguments=arguments, where=where)
    if not template.inputs:
        raise RequestError(f"{where} has no tensor among its inputs")
    return template


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return torch.as_tensor(leaf)
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def _described(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def _is_equal(first: object, value: object) -> bool:
    return first is value or (type(first) is type(value) and bool(first == value))

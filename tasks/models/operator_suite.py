"""The operator cases of ExecuTorch's own backend test suite, which is part of the installed package.

A test of the suite calls its fixture with a module and its inputs, once or several times. Each of these calls is a
case. The tests are run with a fixture that only records the calls, so nothing of the suite is copied.
"""

import hashlib
import importlib
import inspect
import itertools
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import SkipTest

import torch
from torch import nn

from qnnsweep.tasks.errors import RequestError, raise_shortage

SUITE = "executorch.backends.test.suite.operators"
PREFIX = "test_"


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteCase:
    """One call of a test: a module with its inputs, or the reason why the test makes no call."""

    operator: str
    test: str
    """The name of the test, with its parameters in brackets."""
    number: int
    """The position of the call among those of the test."""
    module: nn.Module | None = None
    inputs: tuple[torch.Tensor, ...] = ()
    names: tuple[str, ...] = ()
    skipped: str | None = None


class _Recorder:
    """The fixture that the tests get instead of the suite's own. It records the calls."""

    def __init__(self) -> None:
        self._flow = SimpleNamespace(quantize=False)  # some tests skip themselves for flows that quantize
        self.calls: list[tuple[nn.Module, Any]] = []

    def lower_and_run_model(self, model: nn.Module, inputs: Any, **_: Any) -> None:
        self.calls.append((model, inputs))


class Flat(nn.Module):
    """A module that takes as separate arguments the tensors that the module inside takes in tuples."""

    def __init__(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.module = module
        self.sizes = [len(value) if isinstance(value, tuple) else None for value in inputs]

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return self.module(
            *(next(rest) if size is None else tuple(itertools.islice(rest, size)) for size in self.sizes)
        )


def suite_operators() -> list[str]:
    """Return the names of the operators that the suite has tests for. Raises RequestError if there is no suite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the packages that the suite imports
            package = importlib.import_module(SUITE)
    except ImportError as error:
        raise RequestError(f"the installed ExecuTorch has no operator tests ({SUITE}): {error}") from None
    return [
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith(PREFIX)
    ]


def suite(operators: Sequence[str] | None = None, calls: str = "first") -> Iterator[dict[str, Any]]:
    """Yield the cases of the suite, for `model.cases`.

    `operators`: only the cases of these operators. `calls`: `first` for the first call of every test, `all` for all.

    Raises RequestError if the installed package has no suite, or not one of these operators.
    """
    if calls not in ("first", "all"):
        raise RequestError(f"model.arguments.calls={calls}: accepted are first and all")
    known = suite_operators()
    if unknown := sorted({*(operators or ())} - {*known}):
        raise RequestError(
            f"model.arguments.operators: no such operator: {', '.join(unknown)}; one of {', '.join(known)}"
        )
    for operator in known if operators is None else operators:
        for case in suite_cases(operator):
            if case.number and calls == "first":
                continue
            yield {
                "name": case.test if not case.number else f"{case.test}/{case.number}",
                "operator": operator,
                "arguments": {"operator": operator, "test": case.test, "number": case.number},
                "inputs": dict(zip(case.names, case.inputs, strict=True)),
                "skipped": case.skipped,
            }


def suite_cases(operator: str, seed: int = 0) -> Iterator[SuiteCase]:
    """Yield the cases of an operator. `seed`: selects the random weights and inputs."""
    tests = importlib.import_module(f"{SUITE}.{PREFIX}{operator}")
    for name, parameters in _tests(tests):
        values = ", ".join(f"{key}={_short(value)}" for key, value in parameters.items())
        test = f"{name.removeprefix(PREFIX)}[{values}]" if values else name.removeprefix(PREFIX)
        recorder = _Recorder()
        torch.manual_seed(int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:4], "big"))
        try:
            getattr(tests, name)(recorder, **parameters)
        except SkipTest as skipped:
            yield SuiteCase(operator=operator, test=test, number=0, skipped=f"the suite skips it: {skipped}")
        except Exception as error:  # noqa: BLE001 - a test of another release may need more of its fixture
            raise_shortage(error)
            reason = f"the test raises {type(error).__name__}: {error}"
            yield SuiteCase(operator=operator, test=test, number=len(recorder.calls), skipped=reason)
        for number, (module, inputs) in enumerate(recorder.calls):
            yield _case(operator, test, number, module, inputs)


def _tests(tests: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of every test of a file, once per set of its parameters."""
    for name, test in vars(tests).items():
        if name.startswith(PREFIX) and callable(test):
            marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
            for values in itertools.product(*([(key, value) for value in values] for key, values, *_ in marks)):
                yield name, dict(values)


def _case(operator: str, test: str, number: int, module: nn.Module, inputs: Sequence[Any]) -> SuiteCase:
    tensors = tuple(tensor for value in inputs for tensor in (value if isinstance(value, tuple) else (value,)))
    names = [*inspect.signature(module.forward).parameters]
    if len(tensors) != len(inputs):
        module = Flat(module, inputs)
        names = []
    if len(names) < len(tensors):
        names = [f"tensors_{index}" for index in range(len(tensors))]
    return SuiteCase(
        operator=operator,
        test=test,
        number=number,
        module=module.eval(),
        inputs=tensors,
        names=(*names[: len(tensors)],),
    )


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


def suite_module(operator: str, test: str, number: int) -> nn.Module:
    """Return the module of a case."""
    module = _named(operator, test, number, 0).module
    assert module is not None
    return module


def suite_inputs(count: int, *, operator: str, test: str, number: int) -> list[dict[str, Any]]:
    """Return the inputs of a case for several seeds, of which the first is that of the module."""
    return list(islice(_inputs(operator, test, number), count))


def _inputs(operator: str, test: str, number: int) -> Iterator[dict[str, Any]]:
    for seed in itertools.count():
        case = _named(operator, test, number, seed)
        yield {"name": f"seed {seed}", "inputs": dict(zip(case.names, case.inputs, strict=True))}


def _named(operator: str, test: str, number: int, seed: int) -> SuiteCase:
    for case in suite_cases(operator, seed):
        if (case.test, case.number) == (test, number):
            return case
    raise RequestError(f"the installed ExecuTorch's suite has no case {number} of {test} for {operator}")

"""Calls during which memory, descriptors or threads are short, one per place that catches errors. They run in workers.

PyTorch's allocator itself fails: it is asked for more bytes than any machine has.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from call_graphs import DOUBLED, FIRST, HALF, X, kernels_of


def allocate(*_: Any, **__: Any) -> Any:
    import torch

    return torch.empty(1 << 50, dtype=torch.uint8)


def _between() -> Any:
    return kernels_of([DOUBLED, ("aten.mul.Tensor", FIRST, FIRST)]).between([X], {}, {0: HALF}, 0.5)


def backward_of_a_run() -> object:
    import torch

    run = _between()
    with mock.patch.object(torch.autograd, "grad", allocate):
        return run.gradients(0, np.ones_like(X))


def _with_operators_that_allocate(compute: Callable[[], object]) -> object:
    from qnnsweep.tasks.toolchain.reference import graph

    with mock.patch.object(graph, "_registered", return_value=allocate):
        return compute()


def operator_of_a_run() -> object:
    return _with_operators_that_allocate(lambda: _between().gradients(0, np.ones_like(X)))


def operator_of_a_replay() -> object:
    kernels = kernels_of([DOUBLED])
    return _with_operators_that_allocate(lambda: kernels.call(0, {}))


def operator_in_float32() -> object:
    """Call an operator that refuses a mix of types, and then fails with one type."""
    import torch

    from qnnsweep.tasks.toolchain.reference import graph

    def kernel(left: Any, right: Any) -> Any:
        if left.dtype != right.dtype:
            raise RuntimeError("mixed types")
        return allocate()

    mixed = [torch.zeros(1), torch.zeros(1, dtype=torch.float64)]
    with mock.patch.object(graph, "_registered", return_value=kernel):
        return graph._called("aten.add.Tensor", mixed, {})


def gradient_of_an_operator() -> object:
    import torch

    kernels = kernels_of([DOUBLED, ("aten.mul.Tensor", FIRST, FIRST)])
    values = {0: kernels.call(0, {})}
    with mock.patch.object(torch.autograd, "grad", allocate):
        return kernels.gradient(1, 0, values, lambda outputs: [np.ones_like(output) for output in outputs])


def elements_that_indices_select() -> object:
    from qnnsweep.tasks.toolchain.reference import kernels

    graph = kernels_of([DOUBLED, ("aten.argmax.default", FIRST, 1)])
    values = {0: graph.call(0, {})}
    with mock.patch.dict(kernels._SELECTIONS, {("aten.argmax.default", 0): allocate}):
        return graph.picked(1, np.array([0, 1]), values)


def debug_program() -> object:
    from qnnsweep.tasks.toolchain import compile as compilation

    with mock.patch.object(compilation, "compile_edge", allocate):
        return compilation.try_compile(None, None, "forward", debug=True)  # type: ignore[arg-type]


def pass_of_executorch() -> object:
    """Compile with a pass whose own error hides the shortage, as ExecuTorch's pass manager does."""
    from qnnsweep.tasks.toolchain import compile as compilation

    def compile_edge(*_: Any, **__: Any) -> object:
        try:
            return allocate()
        except RuntimeError as error:
            raise RuntimeError("An error occurred when running the 'x' pass") from error

    with mock.patch.object(compilation, "compile_edge", compile_edge):
        return compilation.try_compile(None, None, "forward", debug=True)  # type: ignore[arg-type]


def refused_program() -> object:
    """Lower with a compiler that has no memory, and says so in its messages alone."""
    from qnnsweep.tasks.toolchain import lower
    from qnnsweep.tasks.toolchain.backends.compiler import CompilationRefused

    refused = CompilationRefused("Failed to generate Qnn context binary.\nstd::bad_alloc", ())
    with mock.patch.object(lower, "lower_model", side_effect=refused):
        return lower.lower_unless_refused([], None, None, None, None)  # type: ignore[arg-type]


def first_failing_operator() -> object:
    from qnnsweep.tasks.toolchain import first_failing

    anything: Any = None
    with mock.patch.object(first_failing, "program_of", allocate):
        return [*first_failing._errors(anything, anything, "qnn", None, "quantize", anything)]


def mistaken_inputs() -> object:
    import torch

    from qnnsweep.tasks.records import TensorSpec
    from qnnsweep.tasks.toolchain.io_mistakes import mistaken_answers

    specs = [TensorSpec(name=name, shape=(2, 3), dtype="float32") for name in ("a", "b")]
    return mistaken_answers(lambda *_: allocate(), specs, [(torch.zeros(2, 3),) * 2], [torch.zeros(1)])  # type: ignore[arg-type]


def own_metric() -> object:
    import torch

    from qnnsweep.tasks.toolchain.comparators import Subject, _result

    return _result(allocate, torch.zeros(1), torch.zeros(1), Subject(handles=(), is_final=True, label=None))


def case_of_the_suite() -> object:
    from qnnsweep.tasks.models import operator_suite

    tests = ModuleType("tests")
    setattr(tests, f"{operator_suite.PREFIX}add", allocate)
    with mock.patch.object(operator_suite.importlib, "import_module", return_value=tests):
        return list(operator_suite.suite_cases("add"))


def program_of_a_case() -> object:
    """Run the program of an operator case, whose own error hides the shortage."""
    from qnnsweep.tasks.atlas import in_process

    launch: Any = SimpleNamespace(title="shipping program")
    with mock.patch.object(in_process, "runner_arguments", return_value=[]):
        return in_process._run(launch, allocate)


def factory_of_a_model() -> object:
    from qnnsweep.conf.models import ModelConfig
    from qnnsweep.tasks.toolchain.user_code import created_module

    return created_module(ModelConfig(name="large", factory="shortages:allocate", inputs=[], evaluation=None))  # type: ignore[arg-type]


def array_of_numpy() -> object:
    return np.empty(1 << 50, np.uint8)


def thread() -> object:
    with mock.patch.object(threading, "_start_new_thread", side_effect=RuntimeError("can't start new thread")):
        threading.Thread(target=print).start()
    return None


def _without_descriptors(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def file_of_a_model() -> object:
    from qnnsweep.tasks.toolchain import source_digest

    with mock.patch.object(Path, "is_file", _without_descriptors):
        return list(source_digest._paths("weights.pt"))


def weights_of_a_folder() -> object:
    from qnnsweep.tasks.models import language_model

    with (
        mock.patch.object(language_model, "_files", return_value=[Path("model.safetensors")]),
        mock.patch.object(language_model, "safe_open", _without_descriptors),
    ):
        return list(language_model._tensors(Path()))


def configuration_of_a_folder() -> object:
    from qnnsweep.tasks.models import language_model
    from qnnsweep.tasks.models.hugging_face import import_transformers

    with mock.patch.object(import_transformers("a folder").AutoConfig, "from_pretrained", _without_descriptors):
        return language_model._config("a folder")


def configuration_of_a_checkpoint() -> object:
    from qnnsweep.tasks.models import hugging_face

    with mock.patch.object(hugging_face.import_transformers("x").AutoConfig, "from_pretrained", _without_descriptors):
        return hugging_face._configured("a folder", None, {})


def tokeniser_of_a_checkpoint() -> object:
    from qnnsweep.tasks.models import hugging_face

    tokenizers = hugging_face.import_transformers("x").AutoTokenizer
    with mock.patch.object(tokenizers, "from_pretrained", _without_descriptors):
        return hugging_face._text(None, None, "a folder", 8)


def saved_program() -> object:
    from qnnsweep.tasks.models import preparation

    with mock.patch.object(preparation.program_file, "program", _without_descriptors):
        return preparation.read_program("net.pt2")


def arrays_of_samples() -> object:
    from qnnsweep.tasks.models.sample_files import stored_samples

    with mock.patch.object(np, "load", _without_descriptors):
        return stored_samples("samples.npy")


def lines_of_samples() -> object:
    from qnnsweep.tasks.models.sample_files import stored_samples

    with mock.patch.object(Path, "read_text", _without_descriptors):
        return stored_samples("samples.txt")


def picture_of_a_sample() -> object:
    from qnnsweep.tasks.models import sample_files

    with mock.patch.object(sample_files.Image, "open", _without_descriptors):
        return sample_files.stored_samples("sample.png").samples[0].read()


def function_of_samples() -> object:
    from qnnsweep.tasks.models import sample_files

    return sample_files.called_samples(_without_descriptors, "own:samples", {"evaluation": 2}, "evaluation", 0)


def commit_of_executorch() -> object:
    from qnnsweep.tasks.toolchain.backends.qnn.sdk import commit_of

    with mock.patch.object(Path, "read_text", _without_descriptors):
        return commit_of(Path())


def verification() -> tuple[int, int]:
    """Return the exit codes of a verification that is short of memory, and of one whose outputs differ."""
    from executorch.extension.pybindings import _C

    from qnnsweep.tasks.toolchain.verify import verify

    def differ(*_: Any, **__: Any) -> None:
        raise RuntimeError("output 0 differs")

    codes: list[int] = []
    for end in (allocate, differ):
        module = SimpleNamespace(verify_result_with_bundled_expected_output=end)
        with mock.patch.object(_C, "_load_bundled_program_from_buffer", lambda _, module=module: module):
            codes.append(verify(b"", "forward", 0, 1e-3, 1e-5))
    sys.stdout.flush()
    return codes[0], codes[1]

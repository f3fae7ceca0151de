"""The operator with which a program cannot be compiled, found by trials. Runs in a worker.

Some errors of the toolchain name no operator. Then the program is cut after one of its operators, and is quantized and
compiled up to there: where the error of the whole program appears for the first time is the operator.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.records import ExportedMethod
from qnnsweep.tasks.records.source_lines import line_in_words
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import edge_program
from qnnsweep.tasks.toolchain.quantize import input_names
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_samples
from qnnsweep.tasks.toolchain.trial import program_of, why_refused

_NUMBERS = re.compile(r"\d+")


def first_failing(
    exported: ExportedMethod,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    stage: str,
    said: str,
    store: Store,
) -> tuple[str, str] | None:
    """Return the name of the first operator that brings the error `said`, and the operator and its line in words.

    `stage`: the one with the error, of `quantize`, `edge` and `lower`. The program up to the operator fails with this
    error, but for the numbers in it; the program up to the operator before it does not. The result is None if the whole
    program does not fail in this way, or if the line is not known.
    """
    make_deterministic()
    # The grids have no effect on the error, so one sample calibrates.
    exported, scheme = replace(exported, calibration_samples=1), replace(scheme, calibration_samples=1)
    graph = load_program(store, exported.program).module()
    sample = read_samples(store, exported.evaluation, input_names(exported), 1)[0]
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]

    def fails(count: int) -> bool:
        program = _cut(graph, {*calls[:count]}, sample)
        if program is None:
            return False
        torch.export.save(program, "cut.pt2")
        cut = replace(exported, program=store.take_file(Path("cut.pt2")))
        return any(_alike(text, said) for text in _errors(cut, scheme, kind, soc, stage, store))

    if not calls or not fails(len(calls)):
        return None
    node = calls[bisect_left(range(1, len(calls)), True, key=fails)]
    line = line_in_words(node.meta.get("stack_trace") or "")
    return None if line is None else (node.name, f"{node.target} of {line}")


def _cut(graph: GraphModule, kept: set[Node], sample: tuple[torch.Tensor, ...]) -> ExportedProgram | None:
    """Return the program of the first calls, whose outputs are what later calls read; None if it has no output."""
    cut, copies = Graph(graph), dict[Node, Node]()
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr") or node in kept:
            copies[node] = cut.node_copy(node, copies.__getitem__)
    read_later = [node for node in copies if node in kept and any(user not in copies for user in node.users)]
    outputs = [copies[node] for node in read_later if isinstance(node.meta.get("val"), torch.Tensor)]
    if not outputs:
        return None
    cut.output(tuple(outputs))
    cut.eliminate_dead_code()
    return torch.export.export(GraphModule(graph, cut), sample, strict=True)


def _errors(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, soc: SocConfig | None, stage: str, store: Store
) -> Iterator[str]:
    """Yield the error of a program up to a stage, and those behind it."""
    try:
        if stage == "lower":
            refused = why_refused(exported, scheme, kind, soc, store)
            yield from [refused] if refused else []
            return
        program = program_of(exported, scheme, kind, store)
        if stage == "edge":
            edge_program(backend_of(kind).compiler(scheme, None), program, exported.name)
    except Exception as error:  # noqa: BLE001 - a toolchain may raise anything
        raise_shortage(error)
        behind: BaseException | None = error
        while behind is not None:
            yield f"{type(behind).__name__}: {behind}"
            behind = behind.__cause__


def _alike(text: str, said: str) -> bool:
    first = next(iter(text.splitlines()), "")
    return _NUMBERS.sub("", first) in _NUMBERS.sub("", said)

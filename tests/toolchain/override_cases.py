"""What runs in a worker for the tests of overrides: the quantizer's refusals, and a property of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.overridden import overrides_of, select
from qnnsweep.tasks.toolchain.saved_program import load_program

PATHS = ("", "layers.0", "layers.1", "layers.1.attention", "layers.10", "head")
TYPES = ("conv2d", "linear", "relu")
TARGETS = {"conv2d": torch.ops.aten.conv2d.default, "linear": torch.ops.aten.linear.default, "relu": torch.relu}


def refusals(exported: ExportedModel, schemes: Sequence[SchemeConfig], store: Store) -> list[str | None]:
    """Return the message with which the quantizer refuses every scheme before any calibration; None if it accepts."""
    messages: list[str | None] = []
    for scheme in schemes:
        module = load_program(store, exported.methods[0].program).module()
        try:
            prepare_pt2e(module, backend_of("qnn").compiler(scheme, None).quantizer(scheme, module))
            messages.append(None)
        except RequestError as error:
            messages.append(str(error))
    return messages


def graph(operators: Sequence[tuple[str, str]]) -> torch.fx.Graph:
    """Return a chain of operators, with their modules' paths, types, and names in the exported program."""
    result = torch.fx.Graph()
    value = result.placeholder("x")
    for index, (path, kind) in enumerate(operators):
        value = result.call_function(TARGETS[kind], (value,))
        value.meta["nn_module_stack"] = {"L__self__": ("", "Net"), path: (path, "Module")}
        value.meta["from_node"] = [SimpleNamespace(name=f"input_{index}", from_node=[])]
    return result


PATTERNS = st.builds(
    SchemeOverride,
    module=st.sampled_from([None, "*", "layers", "layers.1", "layers.?", "*.attention", "head"]),
    operator=st.sampled_from([None, "conv2d", "*l*"]),
    node=st.sampled_from([None, "input_*", "input_1"]),
    method=st.sampled_from([None, None, "de*", "encode"]),
    quant_dtype=st.sampled_from(["16a8w", "8a4w"]),
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(TYPES)), min_size=1, max_size=5),
    st.lists(PATTERNS, min_size=1, max_size=3),
)
def _selects_what_all_patterns_match(operators: list[tuple[str, str]], overrides: list[SchemeOverride]) -> None:
    expected = {
        index: [
            number
            for number, override in enumerate(overrides)
            if (override.module is None or is_inside(path, override.module))
            and (override.operator is None or fnmatchcase(kind, override.operator))
            and (override.node is None or fnmatchcase(f"input_{index}", override.node))
            and override.method != "encode"
        ]
        for index, (path, kind) in enumerate(operators)
    }
    dtypes = {index: {overrides[number].quant_dtype for number in numbers} for index, numbers in expected.items()}
    used = {number for numbers in expected.values() for number in numbers}
    wanted = {number for number, override in enumerate(overrides) if override.method != "encode"}
    is_refused = used != wanted or any(len(of_operator) > 1 for of_operator in dtypes.values())
    built = graph(operators)
    nodes = [node for node in built.nodes if node.op == "call_function"]
    try:
        selected = select(built, overrides, "decode")
    except RequestError:
        assert is_refused
        assert not any(map(overrides_of, nodes))
        return
    assert not is_refused
    assert [list(overrides_of(node)) for node in nodes] == list(expected.values())
    assert {nodes.index(node): {override.quant_dtype} for node, override in selected.items()} == {
        index: of_operator for index, of_operator in dtypes.items() if of_operator
    }


def is_inside(path: str, pattern: str) -> bool:
    """Return whether the pattern matches the path or a module around it. The model itself has an empty path."""
    if fnmatchcase(path, pattern):
        return True
    return bool(path) and is_inside(path.rpartition(".")[0], pattern)


def check_selection() -> None:
    _selects_what_all_patterns_match()


def ranges_of_inputs() -> list[dict[str, list[float] | None] | str]:
    """Return the ranges by the selected node or input of a graph with one input, or the refusal."""
    answers: list[dict[str, list[float] | None] | str] = []
    limits = [-1.0, 1.0]
    for override, names in (
        (SchemeOverride(input="im*", range=limits), ["image"]),
        (SchemeOverride(input="x", range=limits), ["image"]),
        (SchemeOverride(node="*", range=limits), ["image"]),
        (SchemeOverride(input="x", range=limits), []),
    ):
        built = graph([("", "relu")])
        named = dict(zip(["x"], names, strict=False))
        try:
            selected = select(built, [override], inputs=names)
            answers.append({named.get(node.name, node.name): chosen.range for node, chosen in selected.items()})
        except RequestError as error:
            answers.append(str(error))
    return answers


class Readers(torch.nn.Module):
    """An input that several operators read in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = self.layer(x.permute(0, 2, 1))
        return moved @ x + torch.stack([x, y]).amax(0) + x.sigmoid()


def grids_of_an_input(symmetric: bool, dtype: str) -> dict[str, tuple[float, float]]:
    """Return the ends of the grid on which every operator reads a value, for x in [-1, 1], y in [-20, 20].

    The range of x is fixed from -4 to 2.
    """
    override = SchemeOverride(input="x", range=[-4.0, 2.0])
    scheme = SchemeConfig(name="x", quant_dtype=dtype, activation_symmetric=symmetric, overrides=[override])
    sample = (torch.linspace(-1, 1, 64).view(1, 8, 8), torch.linspace(-20, 20, 64).view(1, 8, 8))
    module = torch.export.export(Readers().eval(), sample, strict=True).module()
    prepared = prepare_pt2e(module, backend_of("qnn").compiler(scheme, None).quantizer(scheme, module))
    prepared(*sample)
    grids: dict[str, tuple[float, float]] = {}
    for node in prepared.graph.nodes:
        for observed in node.all_input_nodes if node.op == "call_function" else ():
            if observed.op == "call_module":
                observer: Any = prepared.get_submodule(observed.target)
                scale, zero_point = (float(value.flatten()[0]) for value in observer.calculate_qparams())
                ends = (observer.quant_min - zero_point) * scale, (observer.quant_max - zero_point) * scale
                grids[f"{node.name} of {observed.args[0].name}"] = round(ends[0], 1), round(ends[1], 1)
    return grids


def refusal_of_integers() -> str:
    """Return the message with which the quantizer refuses a range of token ids."""
    layers = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)).eval()
    override = SchemeOverride(input="input_1", range=[0.0, 1.0])
    scheme = SchemeConfig(name="x", quant_dtype="8a8w", overrides=[override])
    module = torch.export.export(layers, (torch.tensor([[1, 2]]),), strict=True).module()
    try:
        prepare_pt2e(module, backend_of("qnn").compiler(scheme, None).quantizer(scheme, module))
    except RequestError as error:
        return str(error)
    return "accepted"


def called_with_one_layer_as_conv2d() -> list[tuple[str, str]]:
    """Return the operators with weights, and their modules, of three linear layers of which one is a convolution."""
    from qnnsweep.tasks.toolchain.edge import edge_program
    from qnnsweep.tasks.toolchain.nodes import target_name

    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))).eval()
    override = SchemeOverride(module="1", as_conv2d=True)
    compiler = backend_of("qnn").compiler(SchemeConfig(name="x", quant_dtype="8a8w", overrides=[override]), None)
    sample = (torch.randn(1, 8),)
    module = torch.export.export(layers, sample, strict=True).module()
    prepared = prepare_pt2e(module, compiler.quantizer(compiler._scheme, module))
    prepared(*sample)
    converted = torch.export.export(convert_pt2e(prepared), sample, strict=True)
    graph = edge_program(compiler, converted).exported_program().graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    layers_called = [node for node in nodes if target_name(node.target).startswith(("aten.linear", "aten.convolution"))]
    return sorted((target_name(node.target), [*node.meta["nn_module_stack"].values()][-1][0]) for node in layers_called)

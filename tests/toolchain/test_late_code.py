"""The code of a graph module is generated when something reads its `forward`, and it is that of its graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fx

from qnnsweep.tasks.toolchain.late_code import generated_late


def traced() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: torch.relu(x) + 1)


def without_relu(module: fx.GraphModule) -> fx.GraphModule:
    """Change the graph as a pass does."""
    relu, add = (node for node in module.graph.nodes if node.op == "call_function")
    add.replace_input_with(relu, relu.args[0])
    module.graph.erase_node(relu)
    module.recompile()
    return module


READERS: dict[str, Callable[[fx.GraphModule], object]] = {
    "a call": lambda module: module(torch.tensor(-3.0)),
    "forward": lambda module: module.forward(torch.tensor(-3.0)),
    "the class": lambda module: type(module).forward(module, torch.tensor(-3.0)),
    "a trace": lambda module: fx.symbolic_trace(module)(torch.tensor(-3.0)),
    "a copy": lambda module: copy.deepcopy(module)(torch.tensor(-3.0)),
    "a module in a module": lambda module: torch.nn.Sequential(module)(torch.tensor(-3.0)),
    "an interpreter": lambda module: fx.Interpreter(module).run(torch.tensor(-3.0)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("within", [True, False], ids=["within", "after"])
def test_whoever_reads_a_changed_module_gets_the_changed_function(
    read: Callable[[fx.GraphModule], object], within: bool
) -> None:
    with generated_late():
        module = without_relu(traced())
        if within:
            assert read(module) == -2.0
    assert read(module) == -2.0


def test_code_that_nobody_reads_is_not_generated() -> None:
    with generated_late():
        module = without_relu(traced())
        assert "relu" in module.code  # a new module has code at once, and this is still the same
        assert module(torch.tensor(-3.0)) == -2.0
        assert "relu" not in module.code


def test_outside_of_the_context_code_is_generated_at_once() -> None:
    recompile = fx.GraphModule.recompile
    with generated_late():
        assert fx.GraphModule.recompile is not recompile
    assert fx.GraphModule.recompile is recompile
    assert "relu" not in without_relu(traced()).code


def test_a_changed_part_of_a_module_is_changed_if_the_module_is_recompiled() -> None:
    with generated_late():
        graph = fx.Graph()
        graph.output(graph.call_module("part", (graph.placeholder("x"),)))
        module = fx.GraphModule({"part": traced()}, graph)
        part = module.get_submodule("part")
        assert isinstance(part, fx.GraphModule)
        assert module(torch.tensor(-3.0)) == 1.0
        relu, add = (node for node in part.graph.nodes if node.op == "call_function")
        add.replace_input_with(relu, relu.args[0])
        part.graph.erase_node(relu)
        module.recompile()
        assert module(torch.tensor(-3.0)) == -2.0


def test_an_error_of_the_generation_is_not_taken_for_a_missing_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AttributeError("no such node")

    with generated_late():
        module = without_relu(traced())
        monkeypatch.setattr(fx.Graph, "python_code", fail)
        with pytest.raises(RuntimeError, match="AttributeError: no such node"):
            _ = module.forward

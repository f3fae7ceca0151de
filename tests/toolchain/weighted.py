"""What test_weights.py asks of a worker process: the weights of an edge graph with shared and unquantized constants."""

from __future__ import annotations

from typing import Any

from qnnsweep.tasks.records import Weight


def float_weights() -> tuple[list[str], tuple[Weight, ...]]:
    """Return the targets of the operators of a model's edge graph, and its weights.

    The model has an embedding, a linear layer that is called twice, an addend with two axes, and a convolution.
    """
    import torch
    from executorch.exir import to_edge
    from torch import nn

    from qnnsweep.tasks.toolchain.reference.operators import operator_table
    from qnnsweep.tasks.toolchain.reference.weights import weights_of

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer, self.conv = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Conv1d(4, 5, 1)
            self.register_buffer("addend", torch.ones(4, 8))

        def forward(self, tokens: Any) -> Any:
            return self.conv(self.layer(self.layer(self.table(tokens))) + self.addend)

    tokens = torch.zeros(1, 4, dtype=torch.long)
    graph = to_edge(torch.export.export(Layers(), (tokens,), strict=True)).exported_program()
    operators = operator_table(graph)
    return [operator.target for operator in operators], weights_of(graph, operators)

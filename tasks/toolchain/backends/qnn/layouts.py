"""The layouts of the values of an edge program on the HTP, found again by ExecuTorch's own pass. Runs in a worker."""

import copy

from torch.export import ExportedProgram


def axis_orders(edge: ExportedProgram) -> dict[str, tuple[int, ...]]:
    """Return the axis orders of the values that are not in PyTorch's layout, by the name of the node.

    A saved edge program has lost them. The pass needs QNN's variables in the environment when it is imported.
    """
    from executorch.backends.qualcomm._passes.layout_transform import LayoutTransform

    from qnnsweep.tasks.toolchain.backends.qnn.compiler import axis_order_of

    program = copy.deepcopy(edge)
    LayoutTransform(program)(program.graph_module)
    nodes = ((node.name, axis_order_of(node)) for node in program.graph_module.graph.nodes)
    return {name: order for name, order in nodes if order is not None}

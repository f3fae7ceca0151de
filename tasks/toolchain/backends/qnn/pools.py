"""The strides of pools: torch.export leaves out those of the kernel's size, which ExecuTorch's builders need."""

from torch.export import ExportedProgram

from qnnsweep.tasks.toolchain.nodes import target_name

_POOLS = frozenset({"aten.avg_pool3d.default", "aten.max_pool2d.default", "aten.max_pool2d_with_indices.default"})
_KERNEL, _STRIDE = 1, 2  # the positions of these arguments


def with_strides(program: ExportedProgram) -> ExportedProgram:
    """Give every pool without a stride that of its default, the size of its kernel. Return the same program."""
    for node in program.graph.nodes:
        if node.op == "call_function" and target_name(node.target) in _POOLS and not any(node.args[_STRIDE:][:1]):
            before, after = node.args[:_STRIDE], node.args[_STRIDE + 1 :]
            node.args = (*before, node.args[_KERNEL], *after)
    return program

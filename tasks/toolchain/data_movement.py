"""The operators that only move data."""

_DATA_MOVEMENT_OPS = frozenset(
    (
        "aten._to_copy", "aten.alias_copy", "aten.cat", "aten.clone", "aten.constant_pad_nd", "aten.expand_copy",
        "aten.index_select", "aten.permute_copy", "aten.select_copy", "aten.slice_copy", "aten.split_with_sizes_copy",
        "aten.squeeze_copy", "aten.stack", "aten.t_copy", "aten.transpose_copy", "aten.unsqueeze_copy",
        "aten.view_copy",
        "dim_order_ops._to_dim_order_copy", "dim_order_ops._clone_dim_order",
    )
)  # fmt: skip


def moves_data(target: str) -> bool:
    """Return whether the operator with this target, such as `aten.cat.default`, returns elements of its inputs."""
    return target == "getitem" or target.rpartition(".")[0] in _DATA_MOVEMENT_OPS

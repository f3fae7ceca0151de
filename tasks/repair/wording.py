"""Operators in words, by the modules of the user's model."""

from collections.abc import Iterable, Sequence

from qnnsweep.tasks.records import Operator

_NOUNS = {
    "aten._native_batch_norm_legit_no_training": "batch norm",
    "aten._safe_softmax": "softmax",
    "aten._softmax": "softmax",
    "aten._to_copy": "cast",
    "aten.add": "addition",
    "aten.addmm": "linear layer",
    "aten.avg_pool2d": "average pool",
    "aten.bmm": "matrix product",
    "aten.cat": "concatenation",
    "aten.clamp": "clamp",
    "aten.constant_pad_nd": "padding",
    "aten.convolution": "convolution",
    "aten.cumsum": "cumulative sum",
    "aten.div": "division",
    "aten.elu": "ELU",
    "aten.gelu": "GELU",
    "aten.hardsigmoid": "hard sigmoid",
    "aten.hardswish": "hardswish activation",
    "aten.hardtanh": "clamp",
    "aten.linear": "linear layer",
    "aten.matmul": "matrix product",
    "aten.max_pool2d_with_indices": "max pool",
    "aten.mean": "mean",
    "aten.mm": "matrix product",
    "aten.mul": "multiplication",
    "aten.native_layer_norm": "layer norm",
    "aten.relu": "ReLU",
    "aten.sigmoid": "sigmoid",
    "aten.sub": "subtraction",
    "aten.sum": "sum",
    "aten.upsample_bilinear2d": "bilinear interpolation",
    "aten.upsample_nearest2d": "nearest-neighbour interpolation",
    "dim_order_ops._to_dim_order_copy": "cast",
}


def named_targets(operators: Iterable[Operator]) -> dict[str, str]:
    """Return, by operator name, the function that computes the operator's value.

    A getitem operator, which reads an element of a tuple, has the function that returns the tuple. `operators`: in the
    order of the graph.
    """
    targets: dict[str, str] = {}
    tuples = ""
    for operator in operators:
        if operator.shape is None:
            tuples = operator.target
        targets[operator.name] = tuples if operator.target == "getitem" and tuples else operator.target
    return targets


def operators_phrase(target: str | None, modules: Sequence[str], named: int = 1) -> str:
    """Return a phrase such as `6 additions (layers.0 and 5 more)` or, with two named modules, `(a, b and 4 more)`.

    `target`: the function that the operators call; None if they call several. `modules`: the module or the name of each
    operator.
    """
    noun = "operator" if target is None else _noun(target)
    if len(modules) == 1:
        return f"the {noun} {modules[0]}".rstrip()
    distinct = list(dict.fromkeys(modules))
    kind = "" if len(distinct) == len(modules) else " modules"
    more = f" and {len(distinct) - named} more{kind}" if len(distinct) > named else ""
    return f"{len(modules)} {noun}s ({', '.join(distinct[:named])}{more})"


def plural_noun(target: str | None) -> str:
    """Return the kind of several operators, such as `additions`. `target`: None if they call several functions."""
    return f"{'operator' if target is None else _noun(target)}s"


def _noun(target: str) -> str:
    return _NOUNS.get(target.rpartition(".")[0], target if target == "input" else f"{target} operator")


def gain_in_words(gain_db: float) -> str:
    """Return a gain with its sign, without its unit. A gain that is rounded to zero is not negative."""
    return f"{round(gain_db, 1) + 0.0:+.1f}"

"""A scheme as Python that builds ExecuTorch's QuantRecipe, for users of `make_quantizer` and of its llama script.

The written file needs no qnnsweep. It contains the functions of the quantizer that it uses.
"""

import ast
import pprint
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride

_SETTINGS = ("quant_dtype", "observer", "symmetric", "per_channel", "block_size", "range")
"""The settings of an override that a recipe can have, if the override selects a single node or input."""

_QUANTIZER = {
    "qnnsweep.tasks.toolchain.tensors": ("LARGEST_BIAS",),
    "qnnsweep.tasks.toolchain.overridden": ("roots", "_roots"),
    "qnnsweep.tasks.toolchain.backends.qnn.annotations": ("annotation_of", "result_spec", "_observed", "on_range"),
    "qnnsweep.tasks.toolchain.backends.qnn.quantizer": ("_fit_bias", "_fits", "_has_weight"),
}
"""The functions and constants of the quantizer that a recipe contains, by module. The modules are not imported."""


def quant_recipe(scheme: SchemeConfig, title: str) -> str:
    """Return the text of a Python file. Overrides that a recipe cannot express are comments at its end."""
    defaults: dict[str, Any] = {
        "quant_dtype": scheme.quant_dtype,
        "observer": scheme.observer,
        "symmetric": scheme.activation_symmetric,
        "per_channel_conv": scheme.per_channel_conv,
        "per_channel_linear": scheme.per_channel_linear,
        "per_channel_embedding": scheme.per_channel_embedding,
        "block_sizes": scheme.block_size,
    }
    expressible = [override for override in scheme.overrides if _is_expressible(override)]
    nodes = {_node(override): _settings(override) for override in expressible if override.node is not None}
    inputs = {override.input: override.range for override in expressible if override.input is not None}
    template = Template(Path(__file__).with_name("recipe.py.txt").read_text())
    quantizer = "\n\n\n".join(_quantizer())
    text = template.substitute(
        title=title, scheme=_literal(defaults), nodes=_literal(nodes), inputs=_literal(inputs), quantizer=quantizer
    )
    return (
        text + "\n" + "".join(_comments([override for override in scheme.overrides if not _is_expressible(override)]))
    )


def _quantizer() -> Iterator[str]:
    """Yield the source of each part of the quantizer."""
    for module, wanted in _QUANTIZER.items():
        package, _, name = module.rpartition(".")
        source = files(package).joinpath(f"{name}.py").read_text()
        for node in ast.parse(source).body:
            name = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node).partition(" = ")[0]
            if name in wanted:
                yield ast.get_source_segment(source, node) or ""


def _is_expressible(override: SchemeOverride) -> bool:
    name, wildcards = override.node or override.input, set("*?[")
    selects_one = name is not None and override.module is None and not wildcards & {*name, *(override.operator or "")}
    others = (
        override.method,
        override.precision,
        override.share_clamp,
        override.as_conv2d,
        override.constant_range,
        override.least_weight_scale,
        override.fit_weights,
    )
    return selects_one and all(other is None for other in others)


def _node(override: SchemeOverride) -> str | tuple[str, str]:
    """Return the name of the override's node, with the operator's type if the override has one."""
    assert override.node is not None, "the override selects a node"
    return override.node if override.operator is None else (override.node, override.operator)


def _settings(override: SchemeOverride) -> dict[str, Any]:
    return {name: value for name in _SETTINGS if (value := getattr(override, name)) is not None}


def _literal(value: object) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False)


def _comments(overrides: Sequence[SchemeOverride]) -> list[str]:
    head = ["\n# A QuantRecipe cannot express these overrides of the scheme:\n"] if overrides else []
    return head + [f"# {override}\n" for override in overrides]

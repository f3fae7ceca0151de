"""A scheme as Python that builds ExecuTorch's QuantRecipe, for users of `make_quantizer` and of its llama script."""

import pprint
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride

_SETTINGS = ("quant_dtype", "observer", "symmetric", "per_channel", "block_size", "range")
"""The settings of an override that a recipe can have, if the override selects a single node."""


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
    nodes = {override.node: _settings(override) for override in scheme.overrides if _is_expressible(override)}
    template = Template(Path(__file__).with_name("recipe.py.txt").read_text())
    text = template.substitute(title=title, scheme=_literal(defaults), nodes=_literal(nodes))
    return text + "".join(_comments([override for override in scheme.overrides if not _is_expressible(override)]))


def _is_expressible(override: SchemeOverride) -> bool:
    selects_a_node = override.node is not None and override.module is None and override.operator is None
    others = (override.precision, override.share_clamp, override.as_conv2d)
    return selects_a_node and not set("*?[") & set(override.node or "") and all(other is None for other in others)


def _settings(override: SchemeOverride) -> dict[str, Any]:
    return {name: value for name in _SETTINGS if (value := getattr(override, name)) is not None}


def _literal(value: object) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False)


def _comments(overrides: Sequence[SchemeOverride]) -> list[str]:
    head = ["\n# A QuantRecipe cannot express these overrides of the scheme:\n"] if overrides else []
    return head + [f"# {override}\n" for override in overrides]

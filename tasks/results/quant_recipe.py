"""A scheme as Python that builds ExecuTorch's QuantRecipe, for users of `make_quantizer` and of its llama script."""

import pprint
from collections.abc import Sequence
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride

_SETTINGS = ("quant_dtype", "observer", "symmetric", "per_channel", "block_size", "range")
"""The settings of an override that a recipe can have, if the override selects a single node."""

_TEXT = '''\
"""{title}

With `make_quantizer`:
    quantizer = make_quantizer()
    quantizer.set_recipe(recipe())

With ExecuTorch's llama script, in the configuration of the model in oss_scripts/llama/__init__.py:
    quant_recipe = llama_recipe()
"""

import copy
import dataclasses

import torch
from executorch.backends.qualcomm.quantizer.quant_recipe import QuantGranularity, QuantizationStrategy, QuantRecipe
from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QuantDtype
from torchao.quantization.pt2e import observer as observers
from torchao.quantization.pt2e.quantizer import QuantizationSpec, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

SCHEME = {scheme}
# The settings of single nodes of the exported program that differ from the scheme.
NODES = {nodes}


class NodeStrategy(QuantizationStrategy):
    """The configuration of one node, or with `name=None` that of all other nodes."""

    def __init__(self, name, settings):
        dtype, observer = QuantDtype[f"use_{{settings['quant_dtype']}}"], getattr(observers, settings["observer"])
        symmetric = settings["symmetric"]
        granularity = QuantGranularity.PER_TENSOR
        super().__init__(dtype, False, granularity, observer, symmetric, {{}}, "", 0 if name is None else 1)
        self.name, self.settings = name, settings
        per_channel = {{f"is_{{kind}}_per_channel": settings[f"per_channel_{{kind}}"] for kind in KINDS}}
        self.quant_config = ModuleQConfig(
            quant_dtype=dtype, act_observer=observer, act_symmetric=symmetric, **per_channel
        )

    def _matches(self, node):
        return self.name is None or self.name in names_of(node)

    def get_quant_config(self, node):
        if not self._matches(node):
            return None
        config, block = self.quant_config, self._block(node)
        if block is not None:
            blocks = copy.deepcopy(config.per_block_quant_config_list[config.op_axis_dict[node.target]])
            blocks.block_size = tuple(block)
            return blocks
        axis = config.use_per_channel_weight_quant_ops.get(node.target)
        return config.quant_config if axis is None else config.per_channel_quant_config_list[axis]

    def _block(self, node):
        """Return the shape of the blocks of the node's weight, whose number of input channels it must divide."""
        if self.settings["quant_dtype"] != "16a4w_block" or node.target not in self.quant_config.op_axis_dict:
            return None
        kind, shape = node.target.__name__.split(".")[0], node.args[1].meta["val"].shape
        block = self.settings.get("block_size") or self.settings["block_sizes"].get(kind)
        return block if block and len(block) == len(shape) and shape[1] % block[1] == 0 else None


KINDS = ("conv", "linear", "embedding")


def recipe():
    scheme, observer = SCHEME, getattr(observers, SCHEME["observer"])
    dtype = QuantDtype[f"use_{{scheme['quant_dtype']}}"]
    built = QuantRecipe(dtype, False, observer, QuantGranularity.PER_TENSOR, scheme["symmetric"])
    built._strategies.append(NodeStrategy(None, scheme))
    for name, node in NODES.items():
        per_channel = {{f"per_channel_{{kind}}": node["per_channel"] for kind in KINDS if "per_channel" in node}}
        built._strategies.append(NodeStrategy(name, scheme | node | per_channel))
    built.custom_quant_annotations = [fix_ranges, fit_biases]
    return built


def llama_recipe():
    """Return the class that the llama script creates for a model."""
    from executorch.examples.qualcomm.oss_scripts.llama.static_llm_quant_recipe import StaticLLMQuantRecipe

    class Recipe(StaticLLMQuantRecipe):
        default_quant_dtype = QuantDtype[f"use_{{SCHEME['quant_dtype']}}"]

        def __init__(self, verbose=False):
            super().__init__()
            self.recipe = recipe()
            self.recipe.verbose = verbose

    return Recipe


def fix_ranges(graph_module):
    """Fix the ranges of results, and let their readers share them."""
    for node in graph_module.graph.nodes:
        limits = next((NODES[name]["range"] for name in names_of(node) if "range" in NODES.get(name, {{}})), None)
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if limits is None or annotation is None or not isinstance(annotation.output_qspec, QuantizationSpec):
            continue
        spec, info = annotation.output_qspec, torch.iinfo(annotation.output_qspec.dtype)
        least = info.min if spec.quant_min is None else spec.quant_min
        most = info.max if spec.quant_max is None else spec.quant_max
        scale = (limits[1] - limits[0]) / (most - least)
        fixed = observers.FixedQParamsObserver.with_args(scale=scale, zero_point=least - round(limits[0] / scale))
        annotation.output_qspec = QuantizationSpec(
            dtype=spec.dtype, quant_min=least, quant_max=most, qscheme=torch.per_tensor_affine,
            observer_or_fake_quant_ctr=fixed,
        )
        for reader in node.users:
            read = reader.meta[Q_ANNOTATION_KEY].input_qspec_map if Q_ANNOTATION_KEY in reader.meta else {{}}
            if isinstance(read.get(node), QuantizationSpec) and read[node].dtype == spec.dtype:
                read[node] = SharedQuantizationSpec(node)


def fit_biases(graph_module):
    """Let the largest bias fit an int32. It would be 2^31 - 1, which float32 rounds up to 2^31."""
    for node in graph_module.graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None or NODES.keys().isdisjoint(names_of(node)):
            continue
        for source, spec in annotation.input_qspec_map.items():
            if isinstance(spec, QuantizationSpec) and spec.quant_max == torch.iinfo(torch.int32).max:
                limits = {{"quant_min": 128 - 2**31, "quant_max": 2**31 - 128}}
                annotation.input_qspec_map[source] = dataclasses.replace(spec, **limits)


def names_of(node):
    """Return the node's name, and the names of the nodes of the exported program from which it descends."""

    def roots(sources):
        for source in sources:
            yield from roots(source.from_node) if source.from_node else [source.name]

    return {{node.name, *roots(node.meta.get("from_node", ()))}}
'''


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
    text = _TEXT.format(title=title, scheme=_literal(defaults), nodes=_literal(nodes))
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

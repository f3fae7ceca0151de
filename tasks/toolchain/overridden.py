"""The operators and the inputs of a graph that the overrides of a scheme select.

The overrides are noted on the nodes that the quantizer annotates. The note is inherited by all nodes that passes derive
from such a node, and it survives when the program is saved. Therefore the nodes of the edge graph have it too.
"""

import difflib
import operator
import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from torch.fx import Graph, Node

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.overrides import PATTERNS, merged, patterns
from qnnsweep.conf.schemes import OverridePrecision, SchemeOverride
from qnnsweep.tasks.records.keys import METHOD

METHOD_OF_GRAPH = "qnnsweep_method"
"""The key of a graph's metadata with the name of the method that the graph computes."""
INPUTS_OF_GRAPH = "qnnsweep_inputs"
"""The key of a graph's metadata with the names that the inputs of the graph have in the model's configuration."""
_NOTE, _NAME = "qnnsweep_overrides", "qnnsweep_input"
_CLOSE, _MOST_NAMES = 0.3, 6


def select(
    graph: Graph, overrides: Sequence[SchemeOverride], method: str = METHOD, inputs: Sequence[str] = ()
) -> dict[Node, SchemeOverride]:
    """Return, for every selected node, the settings of all overrides that select it. Note the overrides on the node.

    `method`: the method that the graph computes. Overrides for other methods select nothing. `inputs`: the names of the
    graph's inputs; without them, the inputs have the names of their nodes.
    Raises RequestError if a pattern matches nothing, or if the overrides of a node contradict each other.
    """
    names = {node: _names(node, method) for node in graph.nodes if node.op == "call_function" and not _is_part(node)}
    given = list(filter(is_input, graph.nodes))
    for node, name in zip(given, inputs or [node.name for node in given], strict=True):
        names[node] = {"input": {name}, "method": {method}}
        node.meta[_NAME] = name
    selected: dict[Node, list[int]] = {}
    for index, override in enumerate(overrides):
        if override.method is not None and not fnmatchcase(method, override.method):
            continue
        nodes = [node for node, of_node in names.items() if _matches(override, of_node)]
        if not nodes:
            raise _matches_nothing(index, override, list(names.values()))
        for node in nodes:
            for value in (node, *filter(_is_part, node.users)):
                selected.setdefault(value, []).append(index)
    settings = {
        node: merged(overrides, indices, f"the {'input' if is_input(node) else 'operator'} {configured_name(node)}")
        for node, indices in selected.items()
    }
    for node, indices in selected.items():
        node.meta["custom"] = {**node.meta.get("custom", {}), _NOTE: indices}
    return settings


def overrides_of(node: Node) -> tuple[int, ...]:
    """Return the indices of the overrides that select the operator from which a node is derived."""
    return tuple(node.meta.get("custom", {}).get(_NOTE, ()))


def select_only(node: Node, index: int) -> None:
    """Note that the override with this index, and no other, selects the operator from which a node is derived."""
    node.meta["custom"] = {**node.meta.get("custom", {}), _NOTE: [index]}


def has_precision(node: Node, overrides: Sequence[SchemeOverride], precision: OverridePrecision) -> bool:
    """Return whether an override sets the precision of the operator from which a node is derived."""
    return any(overrides[index].precision is precision for index in overrides_of(node))


def is_input(node: Node) -> bool:
    """Return whether the node is an input of the graph."""
    return node.op == "placeholder"


def configured_name(node: Node) -> str:
    """Return the name of an input in the model's configuration, after `select`. Every other node has its own name."""
    return node.meta.get(_NAME, node.name)


def operator_type(node: Node) -> str:
    """Return the operator's name without its overload: `conv2d`, `linear`."""
    return getattr(node.target, "__name__", "").split(".")[0]


def roots(sources: Collection[object]) -> list[str]:
    """Return the names of the nodes of the exported graph from which a node descends, in order, without duplicates.

    `sources`: the node's metadata `from_node`.
    """
    return list(dict.fromkeys(_roots(sources)))


def _roots(sources: Collection[object]) -> Iterator[str]:
    for source in sources:
        earlier = getattr(source, "from_node", ())
        yield from _roots(earlier) if earlier else [str(getattr(source, "name", ""))]


def _is_part(node: Node) -> bool:
    """Return whether the node only takes a value out of a tuple."""
    return node.target is operator.getitem


def _names(node: Node, method: str) -> dict[str, set[str]]:
    """Return, for each kind of pattern, the names of a node that the pattern may match."""
    sources = roots(node.meta.get("from_node", ()))
    # An operator that the quantizer decomposes is selected by the type that it has in the exported program, too.
    types = {operator_type(node), *(re.sub(r"_\d+$", "", source) for source in sources)}
    return {"module": {*_modules(node)}, "operator": types, "node": {node.name, *sources}, "method": {method}}


def _modules(node: Node) -> Iterator[str]:
    """Yield the paths of the module that calls the operator, and of the modules around it; the model itself is empty.

    The metadata lacks modules that are never called, such as a ModuleList. Every beginning of a path is a module.
    """
    paths = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
    parts = paths[-1].split(".") if paths else []
    return (".".join(parts[:length]) for length in range(len(parts) + 1))


def _matches(override: SchemeOverride, names: dict[str, set[str]]) -> bool:
    if (override.input is not None) is not ("input" in names):
        return False
    return all(_any(pattern, names[kind]) for kind, pattern in patterns(override).items())


def _any(pattern: str, names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _matches_nothing(index: int, override: SchemeOverride, names: Sequence[dict[str, set[str]]]) -> RequestError:
    key = f"scheme.overrides[{index}]"
    for kind, pattern in patterns(override).items():
        if not any(_any(pattern, of_node.get(kind, ())) for of_node in names):
            known = sorted({name for of_node in names for name in of_node.get(kind, ()) if name})
            nearest = difflib.get_close_matches(pattern, known, n=_MOST_NAMES, cutoff=_CLOSE) or known[:_MOST_NAMES]
            others = f", and {len(known) - len(nearest)} others" if len(known) > len(nearest) else ""
            problem = f"matches no {kind} of the model; there are {', '.join(nearest)}{others}"
            return RequestError(problem, key=f"{key}.{kind}", value=printable(pattern))
    both = " and ".join(kind for kind in PATTERNS if getattr(override, kind) is not None)
    return RequestError(f"no operator of the model matches {both} together; remove one of the patterns", key=key)

"""What the message of a failed compilation says: the compiler's informative line, the nodes and the user's lines."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.fx import Node

from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.records.source_lines import line_in_words
from qnnsweep.tasks.toolchain.backends.compiler import CompilationRefused
from qnnsweep.tasks.toolchain.backends.qnn.limits import OPERATOR_RULES
from qnnsweep.tasks.toolchain.nodes import target_name

_CONSEQUENCES = re.compile(
    "Failed to generate Qnn context binary|Context binary size calculation failed|Failed to get serialized binary|"
    "Failed to get context binary size|Can't determine the size of graph binary|QnnBackend_validateOpConfig failed|"
    "Failed to validate op|Failed to finalize Qnn Graph|Op specific validation failed|[Gg]raph prepare failed|"
    "Failed to finalize graph|Fail to compile QNN graph|const evaluation failed|preparation failed with err"
)
"""Messages that only say that something failed."""
_NO_INPUTS = "No graph inputs present"
_WORD = re.compile(r"\w+")
_NAMED, _LAST_ERRORS = 3, 5


def refusal(error: str, messages: Sequence[str], graph: Sequence[Node], soc: SocConfig) -> CompilationRefused:
    """Return why a compilation failed; the first line of the text is enough to act on.

    `error`: what ExecuTorch raised. `messages`: of the compiler, with repetitions. `graph`: the calls of the subgraph
    that was compiled last, with their quantization; empty if none was.
    """
    words = Counter(word for message in messages for word in _WORD.findall(message))
    suspects = sorted((node for node in graph if node.name in words), key=lambda node: -words[node.name])
    said = next((message for message in messages if not _CONSEQUENCES.search(message)), None)
    if said is not None and _NO_INPUTS in said:
        lines, names = _lines(graph), _names(graph)
        first = (
            f"{lines or names} is computed from constants alone, in a subgraph of its own, which the compiler refuses: "
            f"compute it once in __init__ and register it as a buffer ({said}; {names})"
        )
    else:
        nodes = [node for node in suspects if words[node.name] == words[suspects[0].name]] or graph
        where = _described(nodes)
        first = f"{'; '.join([*_rules(nodes, soc), said or error])}{f', in the subgraph of {where}' if where else ''}"
    text = "\n".join([first, error, *list(dict.fromkeys(messages))[-_LAST_ERRORS:]])
    return CompilationRefused(text, [node.name for node in suspects])


def _rules(graph: Sequence[Node], soc: SocConfig) -> Iterator[str]:
    """Yield the reasons of the rules that these nodes break."""
    for rule in OPERATOR_RULES:
        if soc.arch < rule.arch_below and any(
            target_name(node.target) in rule.targets and _has_words(node) for node in graph
        ):
            yield f"{rule.reason}, and {soc.name} has v{soc.arch}"


def _has_words(node: Node) -> bool:
    """Return whether a value that a node reads or computes has more than 8 bits."""
    grids = (entry.meta.get("quant_attrs") for entry in (node, *node.all_input_nodes))
    return any(grid is not None and grid.get("dtype") not in (torch.int8, torch.uint8) for grid in grids)


def _described(nodes: Sequence[Node]) -> str:
    lines = _lines(nodes)
    return f"{_names(nodes)}{f', of {lines}' if lines else ''}"


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes[:_NAMED]) + (" and more" if len(nodes) > _NAMED else "")


def _lines(nodes: Sequence[Node]) -> str:
    lines = dict.fromkeys(line for node in nodes if (line := line_in_words(node.meta.get("stack_trace") or "")))
    return "; ".join([*lines][:_NAMED])

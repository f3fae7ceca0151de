"""What is known about a failed cell beyond the message of its error."""

import re
from collections.abc import Iterator
from itertools import zip_longest

from qnnsweep.conf.backends import OperatorRule, planned_backend
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import RunnerFailed
from qnnsweep.tasks.records import Capture, LoweredMethod, LoweredProgram, Operator
from qnnsweep.tasks.records.source_lines import line_in_words

_CONSEQUENCES = re.compile(r"failed|master op validator")
_BITS_8 = 2**8


def failure_reason(error: BaseException, lowered: LoweredProgram | None, request: Request) -> str | None:
    """Return why the runtime lacks operators of the program: the rule or the compiler's words, and the user's line.

    Return None if the error is another one, or if the operators are not known.
    """
    if not isinstance(error, RunnerFailed) or lowered is None:
        return None
    kernels = {_words(name) for name in error.missing}
    texts = [text for method in lowered.methods for text in _of_method(method, kernels, request)]
    return "; ".join(dict.fromkeys(texts)) or None


def first_line(text: str) -> str:
    """Return the first line of a message. The lines after it are the end of a program's output."""
    return text.strip().partition("\n")[0]


def without_operators(lowered: LoweredProgram | None, capture: Capture | None) -> dict[str, str]:
    """Map the name of each method without logged operators to the reason: the toolchain's, or the device's."""
    methods = lowered.methods if lowered else ()
    captured = capture.methods if capture else ()
    reasons: dict[str, str] = {}
    for method, files in zip_longest(methods, captured):
        failures = files.failures.values() if files is not None and not files.debug else ()
        failed = next(map(first_line, failures), None)
        if (reason := method.debug_unavailable or failed) is not None:
            reasons[method.exported.name] = reason
    return reasons


def _of_method(method: LoweredMethod, kernels: set[str], request: Request) -> Iterator[str]:
    refused = [
        operator
        for operator in method.operators
        if operator.subgraph is None and not operator.constant and _words(operator.target) in kernels
    ]
    for operator in refused[:1]:
        line = line_in_words(operator.stack_trace)
        others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        what = f"{line or operator.name}{others} cannot run"
        why = _why(operator, method, request)
        yield f"{what}: {why}, and ExecuTorch's runtime has no CPU kernel for {operator.name}"


def _why(operator: Operator, method: LoweredMethod, request: Request) -> str:
    soc = request.soc
    rules = planned_backend(request.backend.kind).operator_rules
    rule = next((rule for rule in rules if soc.arch < rule.arch_below and _applies(rule, operator, method)), None)
    if rule is not None:
        return f"{rule.reason}, and {soc.name} has v{soc.arch}; {rule.remedy}"
    told = [text for count in method.delegation for text in count.refusals if text.startswith(f"{operator.name}: ")]
    messages = told[0].partition(": ")[2].split("; ") if told else []
    said = next((message for message in messages if not _CONSEQUENCES.search(message)), None)
    return "the compiler leaves it to the CPU" if said is None else f"the compiler refuses it ({said.rstrip('.')})"


def _applies(rule: OperatorRule, operator: Operator, method: LoweredMethod) -> bool:
    if operator.target not in rule.targets:
        return False
    values = (operator, *(method.operators[source] for source in operator.sources))
    grids = [value.quantization for value in values if value.quantization is not None and not value.constant]
    return any(grid.quant_max - grid.quant_min >= _BITS_8 for grid in grids)


def _words(name: str) -> str:
    """Return the name of an operator without its overload: `matmul` for `aten::matmul.out`, `aten.matmul.default`."""
    words = name.replace("::", ".").split(".")
    return words[min(1, len(words) - 1)]

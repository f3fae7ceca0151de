"""The changes of a scheme that are tried if the compiler refuses the program."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qnnsweep.conf.schemes import OverridePrecision, Precision, SchemeConfig, SchemeOverride

_MOST_OPERATORS = 3
OTHER_SCHEMES = (
    SchemeConfig(name="8a8w", quant_dtype="8a8w"),
    SchemeConfig(name="16a8w", quant_dtype="16a8w"),
    SchemeConfig(name="fp16", precision=Precision.float16),
)
"""The shipped schemes that are tried as a whole."""


def changes(nodes: Sequence[str], scheme: SchemeConfig) -> Iterator[tuple[str, SchemeConfig]]:
    """Yield the changes to try, each in words with its key: one operator on the CPU, then other schemes.

    `nodes`: those of the exported program that the compiler's messages are about. Nothing is tried for a scheme with
    overrides: a search, or a user who knows the operators, chose it.
    """
    if scheme.overrides:
        return
    if scheme.precision is Precision.quantized:
        for node in nodes[:_MOST_OPERATORS]:
            override = SchemeOverride(node=node, precision=OverridePrecision.cpu)
            yield (
                f"one operator on the CPU, `scheme.overrides=[{{node: {node}, precision: cpu}}]`",
                replace(scheme, overrides=[override]),
            )
    for other in OTHER_SCHEMES:
        if (other.precision, other.quant_dtype) != (scheme.precision, scheme.quant_dtype):
            yield f"`scheme={other.name}`", other

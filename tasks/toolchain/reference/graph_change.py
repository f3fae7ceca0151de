"""Whether the lowered graph is still the function that the model computes, and if not, where it changed."""

from collections.abc import Callable, Mapping, Sequence

import torch

from qnnsweep.tasks.numerics.noise import in_db, noise_to_signal
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.records import ExportedMethod, Operator, OtherReference
from qnnsweep.tasks.records.keys import tensor_key, tensor_name
from qnnsweep.tasks.records.source_lines import line_in_words
from qnnsweep.tasks.toolchain.tensors import array_of

SAME_FUNCTION_DB = 40.0
"""A lowered graph with a lower SNR, although nothing is rounded, computes another function than the model.

Passes replace operators by others that are equal up to the last bits, such as a folded batch norm (117 dB).
"""
_SHORT_FLOATS = ("bfloat16", "float16")
_SAME_IN_SHORT_FLOATS_DB = 20.0  # the last bit of a bfloat16 is at 48 dB, and a model has many operators
_INSTEAD = "compute a new tensor instead, for example with torch.where, torch.cat or masked_fill"

Tensors = Mapping[str, torch.Tensor]
"""Tensors by the key `<sample>/<output index>` or `<sample>/<operator index>`."""


def graph_change(
    exported: ExportedMethod,
    lowered: Tensors,
    eager: Tensors,
    values: Callable[[], Mapping[int, object]],
    operators: Sequence[Operator],
    reference: Callable[[], tuple[OtherReference, Tensors]],
) -> str | None:
    """Return what makes the lowered graph another function than the model; None if it is the same function.

    `lowered`, `eager`: the final outputs for all samples. `values`: returns those of the operators in the lowered
    graph, for the first sample. `reference`: returns the counterparts of the operators in the exported program, with
    their values.
    """
    noise = {key: _noise(lowered[key], expected) for key, expected in eager.items()}
    worst = max(noise, key=lambda key: noise[key], default=None)
    is_short = any(operator.dtype in _SHORT_FLOATS for operator in operators)
    most = 10 ** (-(_SAME_IN_SHORT_FLOATS_DB if is_short else SAME_FUNCTION_DB) / 10)
    if worst is None or noise[worst] <= most:
        return None
    sample = exported.sample_names[int(worst.partition("/")[0])]
    output = exported.outputs[int(tensor_name(worst))].name
    snr_db = in_db(noise[worst])
    far = "no finite SNR" if snr_db is None else f"{snr_db:.1f} dB"
    text = f"the lowered graph is another function than the model, with nothing rounded ({output} of {sample}: {far})"
    if exported.lost_writes:
        return f"{text}: the conversion loses what {'; '.join(exported.lost_writes)} writes in place; {_INSTEAD}"
    first = _first_change(values(), operators, *reference(), most)
    return f"{text}{'' if first is None else f': it first differs at {first}'}"


def _first_change(
    values: Mapping[int, object],
    operators: Sequence[Operator],
    reference: OtherReference,
    expected: Tensors,
    most: float,
) -> str | None:
    """Return the first operator whose value differs from its counterpart in the exported program, in words.

    `most`: the noise-to-signal ratio that a value may have.
    """
    for operator, counterpart in zip(operators, reference.counterparts, strict=True):
        value = values.get(operator.index)
        if counterpart.status is not None or operator.constant or not isinstance(value, torch.Tensor):
            continue
        if _noise(value, expected[tensor_key(0, operator.index)]) > most:
            line = line_in_words(operator.stack_trace)
            return f"{operator.name}{f', {line}' if line else ''}"
    return None


def _noise(actual: torch.Tensor, expected: torch.Tensor) -> float:
    compared = compare_values(array_of(actual), array_of(expected))
    return noise_to_signal(compared.status, compared.gap.snr_db)

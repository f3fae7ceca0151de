"""The outputs of eager PyTorch for inputs in a wrong order or with a wrong axis order. Runs in a worker."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.numerics.io_mistakes import layouts, orders
from qnnsweep.tasks.records import InputMistake, TensorSpec
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.toolchain.tensors import flat_outputs

Inputs = tuple[torch.Tensor, ...]
_SAMPLES = 2
"""The number of samples on which each mistake is tried. The sample whose outputs change most is recorded."""


def mistaken_answers(
    module: torch.nn.Module, specs: Sequence[TensorSpec], samples: Sequence[Inputs], answers: Sequence[object]
) -> tuple[tuple[InputMistake, ...], dict[str, torch.Tensor]]:
    """Return all possible mistakes, and the outputs that they cause, by the key `<mistake index>/<output index>`."""
    mistakes: list[InputMistake] = []
    tensors: dict[str, torch.Tensor] = {}
    right = [list(flat_outputs(answer).values()) for answer in answers[:_SAMPLES]]
    for number, (name, apply) in enumerate(_mistakes(specs)):
        sample, refused = 0, None
        try:
            with torch.no_grad():
                wrong = [list(flat_outputs(module(*apply(inputs))).values()) for inputs in samples[:_SAMPLES]]
            changes = [_change(*pair) for pair in zip(wrong, right, strict=True)]
            sample = changes.index(max(changes))
            tensors |= {tensor_key(number, index): tensor for index, tensor in enumerate(wrong[sample])}
        except (ArithmeticError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise_shortage(error)
            # A module may not accept the tensor of another input: token ids, for example, are not a mask.
            refused = f"{type(error).__name__}: {error}".splitlines()[0]
        mistakes.append(InputMistake(name=name, sample=sample, refused=refused))
    return tuple(mistakes), tensors


def _mistakes(specs: Sequence[TensorSpec]) -> Iterator[tuple[str, Callable[[Inputs], Inputs]]]:
    for order in orders(specs):
        # The caller passes the tensors in the model's order. Each model input then gets the tensor that was passed at
        # the position where the program expects this input.
        names = [specs[index].name for index in order]
        positions = [order.index(index) for index in range(len(specs))]
        yield (
            f"the program takes its inputs in the order {names}",
            lambda inputs, positions=positions: tuple(inputs[position] for position in positions),
        )
    for number, spec in enumerate(specs):
        for axes in layouts(spec.shape):
            yield (
                f"the program takes input {spec.name} in the axis order {list(axes)}",
                lambda inputs, number=number, axes=axes: _read_as(inputs, number, axes),
            )


def _read_as(inputs: Inputs, number: int, axes: Sequence[int]) -> Inputs:
    """Return the inputs, but read the memory of input `number` as if it were in the axis order `axes`."""
    tensor = inputs[number]
    inverse = [list(axes).index(axis) for axis in range(tensor.dim())]
    misread = tensor.reshape([tensor.shape[axis] for axis in axes]).permute(inverse).contiguous()
    return (*inputs[:number], misread, *inputs[number + 1 :])


def _change(wrong: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Return the sum of the squared differences between two lists of outputs; infinity if the sum is NaN."""
    change = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(wrong, right, strict=True))
    return float("inf") if math.isnan(change) else change

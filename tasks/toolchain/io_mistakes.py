"""What eager PyTorch answers when its inputs reach it in another order or with other axes. Runs in a worker."""

from collections.abc import Callable, Iterator, Sequence

import torch

from tasks.numerics.io_mistakes import layouts, orders
from tasks.records import InputMistake, TensorSpec
from tasks.records.keys import tensor_key
from tasks.toolchain.tensors import flat_outputs

Inputs = tuple[torch.Tensor, ...]
_SAMPLES = 2
"""Of the first samples, the one in which a mistake changes the answer most speaks for it."""


def mistaken_answers(
    module: torch.nn.Module, specs: Sequence[TensorSpec], samples: Sequence[Inputs], answers: Sequence[object]
) -> tuple[tuple[InputMistake, ...], dict[str, torch.Tensor]]:
    """Every mistake that the inputs allow, and the answers to them, keys `<mistake index>/<output index>`."""
    mistakes: list[InputMistake] = []
    tensors: dict[str, torch.Tensor] = {}
    own = [list(flat_outputs(answer).values()) for answer in answers[:_SAMPLES]]
    for number, (name, apply) in enumerate(_mistakes(specs)):
        sample, refused = 0, None
        try:
            with torch.no_grad():
                given = [list(flat_outputs(module(*apply(each))).values()) for each in samples[:_SAMPLES]]
            sample = max(range(len(given)), key=lambda each: _apart(given[each], own[each]))
            tensors |= {tensor_key(number, index): tensor for index, tensor in enumerate(given[sample])}
        except (ArithmeticError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            # An index is no mask: what one input takes, another may not.
            refused = f"{type(error).__name__}: {error}".splitlines()[0]
        mistakes.append(InputMistake(name=name, sample=sample, refused=refused))
    return tuple(mistakes), tensors


def _mistakes(specs: Sequence[TensorSpec]) -> Iterator[tuple[str, Callable[[Inputs], Inputs]]]:
    for order in orders(specs):
        # The model's input of a name then gets what was laid at the place that the program has for that name.
        names = [specs[index].name for index in order]
        places = [order.index(index) for index in range(len(specs))]
        yield (
            f"the program takes its inputs in the order {names}",
            lambda given, places=places: tuple(given[place] for place in places),
        )
    for number, spec in enumerate(specs):
        for axes in layouts(spec.shape):
            yield (
                f"the program takes input {spec.name} in the axis order {list(axes)}",
                lambda given, number=number, axes=axes: _read_as(given, number, axes),
            )


def _read_as(given: Inputs, number: int, axes: Sequence[int]) -> Inputs:
    """The tensor that a program sees which believes the input's memory to be in that axis order."""
    own = given[number]
    inverse = [list(axes).index(axis) for axis in range(own.dim())]
    seen = own.reshape([own.shape[axis] for axis in axes]).permute(inverse).contiguous()
    return (*given[:number], seen, *given[number + 1 :])


def _apart(given: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> float:
    """How much of the answer's energy changes; a not finite answer is as far away as can be."""
    change = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(given, own, strict=True))
    return change if change == change else float("inf")

"""What torch.export cannot make a fixed program of, in words for the user: the line, the reason and what to do."""

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.source_lines import line_in_words
from qnnsweep.tasks.toolchain.nodes import schema_name

_DATA_DEPENDENT = re.compile(r"data-dependent|Dynamic (shape|slicing|control)", re.IGNORECASE)
_OF_USER = ("from user code:", "The following call raised this error:")
"""What PyTorch writes before the stack of the user's code."""
_NO_REMEDY = ("Please report an issue", "This graph break", "It may be possible to write Dynamo", "If you are")
_NUMPY = re.compile(r"numpy|ufunc", re.IGNORECASE)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_async", "sym_size")
_SOLVERS = re.compile(
    "aten::(linalg_)?(inv|inverse|pinv|pinverse|solve|lstsq|cholesky|eigh?|eigvalsh?|svd|svdvals|qr|lu|det|slogdet)"
    "(_ex|_factor|_factor_ex|_solve|_inverse|_triangular|_unpack)?"
)
_NOT_LOADED = "Couldn't load custom C++ ops"
"""What torchvision says without its compiled part."""
_IN_TORCHVISION = re.compile(r"torchvision/(ops/|extension\.py)")
_FIXED = "a compiled program runs the same operators on the same shapes for all inputs"


def place_of(error: BaseException) -> str:
    """Return the line of the user's code that an error comes from, as ` at <line>`; empty if it is not known."""
    text = str(error)
    own = next((text.partition(mark)[2] for mark in _OF_USER if mark in text), "")
    line = line_in_words(own) or line_in_words("".join(traceback.format_tb(error.__traceback__)))
    return f" at {line}" if line else ""


def check_loaded(name: str, error: Exception) -> None:
    """Raise RequestError if `error` says that torchvision has no compiled operators here. No backend has them."""
    if _NOT_LOADED in str(error):
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        line = line_in_words("".join(frame for frame in frames if not _IN_TORCHVISION.search(frame)))
        place = f" at {line}" if line else ""
        raise RequestError(
            f"the model {name} calls a compiled operator of torchvision{place}: it is not loaded with this PyTorch, "
            "and no backend of ExecuTorch has it; give the part before it, such as a module of a detector whose "
            "forward is self.head([*self.backbone(x).values()])"
        ) from error


def cannot_export(name: str, errors: Sequence[Exception]) -> RequestError:
    """Return why torch.export fails for the model `name`. `errors`: those of its modes, the one of its default first.

    The result has the user's line and what to do, as far as PyTorch says it.
    """
    dependent = next((error for error in errors if _depends_on_data(error)), None)
    if dependent is not None:
        return RequestError(
            f"the model {name} decides by the values of a tensor{place_of(dependent)}: {_FIXED}; compute both results "
            "and choose with torch.where, such as h = torch.where(h.mean() > 0, h * 2, h)"
        )
    error = errors[0]
    lines = [line.strip() for line in str(error).partition("\n\n")[0].splitlines()]
    said = [next(filter(None, lines), "")]
    said += [line.partition(": ")[2] for line in lines if line.startswith("Explanation: ")]
    hints = [line.partition(": ")[2] for line in str(error).splitlines() if line.strip().startswith("Hint: ")]
    remedies = [hint for hint in hints if not hint.startswith(_NO_REMEDY)][:1]
    if any(_NUMPY.search(str(found)) for found in errors):
        remedies = ["compute with PyTorch, and not with NumPy or SciPy, or do it before the model, in the samples"]
    text = "; ".join(part.rstrip(". ") for part in (*said, *remedies))
    return RequestError(f"torch.export cannot trace the model {name}{place_of(error)}: {type(error).__name__}: {text}")


def check_values(name: str, program: ExportedProgram) -> None:
    """Raise RequestError if a number or a shape in the program depends on the values of a tensor."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if any(map(_has_symbol, value if isinstance(value, tuple | list) else [value])):
            raise RequestError(
                f"the model {name} makes a tensor whose size depends on the values of another{_place(node)}: {_FIXED}; "
                "keep all elements and choose with torch.where, or take a fixed number of them with torch.topk"
            )
        if _reads_number(node):
            raise RequestError(
                f"the model {name} computes with a number that it reads out of a tensor{_place(node)}: {_FIXED}; "
                "compute with the tensor itself, without item(), int(), float() or tolist()"
            )


def check_operators(name: str, program: ExportedProgram) -> None:
    """Raise RequestError for an operator that no backend of ExecuTorch computes in any scheme."""
    for node in program.graph.nodes:
        if any(map(_is_complex, tree_leaves(node.meta.get("val")))):
            raise RequestError(
                f"the model {name} computes with complex numbers{_place(node)}, which ExecuTorch has no operators for; "
                "compute with real and imaginary parts, as a Fourier transform by products with tables of cos and sin"
            )
        if _SOLVERS.fullmatch(schema_name(node)):
            raise RequestError(
                f"the model {name} solves or inverts a matrix{_place(node)}, which ExecuTorch has no operators for; "
                "compute it before the model, in the samples, or once in __init__ and register it as a buffer"
            )


def check_samples(name: str, samples: Iterable[tuple[str, Mapping[str, torch.Tensor]]]) -> None:
    """Raise RequestError for a sample with NaN, from which no grid can be calibrated. `samples`: each with its name."""
    for sample, inputs in samples:
        for key, value in inputs.items():
            if value.is_floating_point() and bool(value.isnan().any()):
                raise RequestError(
                    f"the input {key} of {sample} of the model {name} has NaN, from which nothing can be calibrated or "
                    "compared; leave the sample out, or replace the values, such as by torch.nan_to_num"
                )


def _place(node: Node) -> str:
    """Return the user's line of a node, as ` at <line>`; empty if it is not known."""
    line = line_in_words(node.meta.get("stack_trace") or "")
    return f" at {line}" if line else ""


def _is_complex(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def _depends_on_data(error: Exception) -> bool:
    return isinstance(error, GuardOnDataDependentSymNode) or bool(_DATA_DEPENDENT.search(str(error).split("\n")[0]))


def _has_symbol(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _reads_number(node: Node) -> bool:
    """Return whether an operator that is no check has an argument that depends on the values of a tensor."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._opname in _CHECKS:
        return False
    return any(isinstance(source.meta.get("val"), _SYMBOLS) for source in node.all_input_nodes)

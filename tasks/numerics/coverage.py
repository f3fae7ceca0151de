"""What can become of an operator when a device's tensors are compared with a reference, and how many were compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Status = Literal[
    "compared",
    "exact",
    "masked",
    "shape_differs",
    "dtype_differs",
    "nonfinite_differs",
    "ambiguous",
    "repeated",
    "not_dumped",
    "superseded",
    "tuple",
    "unused",
    "constant",
    "no_handle",
    "no_node",
    "no_value",
    "no_operator",
]

STATUSES: dict[Status, str] = {
    "compared": "The device's tensor was compared with the reference's; the gap says how far apart they are.",
    "exact": "Every element equals the reference's.",
    "masked": "Compared over the elements that its readers read; what differs in the others they discard.",
    "shape_differs": "The device's tensor, back in PyTorch's layout, has another shape than the reference's.",
    "dtype_differs": "The device logged integer codes for a real value; the lowering noted no grid to read them by.",
    "nonfinite_differs": "Infinities or NaNs of the two sides differ in place or in kind.",
    "ambiguous": "Several tensors or nodes may be this operator's value and cannot be told apart; none was picked.",
    "repeated": "The operator was executed several times in one inference; none of its values was picked.",
    "not_dumped": "The device logged nothing under this operator's debug handle and output index.",
    "superseded": "A later operator is the value of the same handle, of the set of handles that was logged as one, "
    "or of the same node of that reference.",
    "tuple": "The value is a tuple; the getitem rows that follow speak for its elements.",
    "unused": "An output of an operator that nothing reads: the compiler need not compute it.",
    "constant": "Computed from parameters alone and folded by the compiler; it does not exist at run time.",
    "no_handle": "The lowering left this operator without a debug handle, so nothing logged can be matched with it.",
    "no_node": "By its ancestry the operator stands for no node of that reference.",
    "no_value": "The host cannot compute the node of that reference that the operator stands for.",
    "no_operator": "A node of that reference that no operator stands for: gone, or inside one that does not tell.",
}
"""Every status an operator's row can have, and what it means."""

COMPARED: frozenset[Status] = frozenset({"compared", "exact", "masked"})
"""The statuses that have a gap."""


def coverage(statuses: Iterable[str]) -> tuple[int, int]:
    """How many have a gap, of how many. Raises KeyError for a status not in `STATUSES`."""
    compared = total = 0
    for status in statuses:
        if status not in STATUSES:
            raise KeyError(status)
        compared += status in COMPARED
        total += 1
    return compared, total

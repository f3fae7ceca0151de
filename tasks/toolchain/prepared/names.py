"""The names of QNN's passes and of the operators that QNN's backend can delegate, with the ExecuTorch of a toolchain.

As a program, this module prints these names. `names` starts it in the environment of the toolchain.
"""

from collections.abc import Mapping

from qnnsweep.tasks.toolchain.prepared.answer import answer_of, print_answer

_DEADLINE_S = 120


def names(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of all passes and of all operators. Raises ProbeFailed if the backend cannot be imported."""
    passes, operators = answer_of(__name__, "its import", environment, _DEADLINE_S)
    return passes, operators


def main() -> None:
    # Everything that a worker imports of the backend, so that a commit that cannot be imported fails here.
    from executorch.backends.qualcomm import export_utils as _  # noqa: F401
    from executorch.backends.qualcomm.builders.node_visitor_manager import _node_visitor_dict

    from qnnsweep.tasks.toolchain.backends.qnn.switched_off import pass_names

    print_answer([pass_names(), sorted(_node_visitor_dict)])


if __name__ == "__main__":
    main()

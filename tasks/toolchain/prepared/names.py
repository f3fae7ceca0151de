"""The names of QNN's passes and of the operators that QNN's backend can delegate, with the ExecuTorch of a toolchain.

As a program, this module prints these names as one line of JSON. `names` starts it in the environment of the toolchain.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from tasks.toolchain.prepared.probe import ProbeFailed

_DEADLINE_S = 120
_ANSWER = "names: "


def names(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of all passes and of all operators. Raises ProbeFailed if the backend cannot be imported."""
    with tempfile.TemporaryDirectory(prefix="qnnsweep-names-") as folder:
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "tasks.toolchain.prepared.names"],
                env=dict(os.environ) | dict(environment) | {"PYTHONSAFEPATH": "1"},
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProbeFailed(f"its import did not end within {_DEADLINE_S} s") from None
    for line in ran.stdout.splitlines():
        if line.startswith(_ANSWER):
            passes, operators = json.loads(line.removeprefix(_ANSWER))
            return passes, operators
    lines = ran.stderr.strip().splitlines()
    raise ProbeFailed(lines[-1] if lines else f"its import ended with exit code {ran.returncode}")


def main() -> None:
    # Everything that a worker imports of the backend, so that a commit that cannot be imported fails here.
    from executorch.backends.qualcomm import export_utils as _  # noqa: F401
    from executorch.backends.qualcomm.builders.node_visitor_manager import _node_visitor_dict

    from tasks.toolchain.backends.qnn.switched_off import pass_names

    print(_ANSWER + json.dumps([pass_names(), sorted(_node_visitor_dict)]), flush=True)


if __name__ == "__main__":
    main()

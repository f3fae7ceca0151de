"""ExecuTorch's own verification of a bundled program: `python -m qnnsweep.tasks.toolchain.verify FILE --case 0`.

It does what ExecuTorch's `example_runner --output_verification` does, with the same default tolerances. The expected
outputs are eager PyTorch's, so a quantized program needs wider tolerances.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from qnnsweep.tasks.errors import EnvironmentUnusable, shortage_behind
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk

VERIFIED, NOT_VERIFIED, UNUSABLE = 0, 1, 3


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qnnsweep.tasks.toolchain.verify", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("program", type=Path, help="a run's files/…/program.bpte")
    parser.add_argument("--method", default=METHOD, help="the method, if the program has several")
    parser.add_argument("--case", type=int, default=0, help="test case: the evaluation sample's number")
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--atol", type=float, default=1e-5)
    parser.add_argument("--here", action="store_true", help="run in this process; QNN's variables must be set")
    options = parser.parse_args(argv)
    if not options.program.is_file():
        parser.error(f"no program at {options.program}")
    if options.here:
        return verify(options.program.read_bytes(), options.method, options.case, options.rtol, options.atol)
    with tempfile.TemporaryDirectory() as links:
        try:
            environment = find_sdk(os.environ, Path(links)).environment(os.environ)
        except EnvironmentUnusable as error:
            print(f"verify: {error}", file=sys.stderr)
            return UNUSABLE
        again = [sys.executable, "-m", "qnnsweep.tasks.toolchain.verify", *argv, "--here"]
        return subprocess.run(again, env=os.environ | environment, check=False).returncode


def verify(bundled: bytes, method: str, case: int, rtol: float, atol: float) -> int:
    """Run one test case: every element of its outputs must satisfy |actual - expected| <= atol + rtol * |expected|."""
    import executorch.kernels.quantized  # noqa: F401 - registers the quantize and dequantize kernels
    import torch  # noqa: F401 - its libraries must be loaded before the runtime's
    from executorch.extension.pybindings import _C

    module = _C._load_bundled_program_from_buffer(bundled)
    try:
        module.verify_result_with_bundled_expected_output(method, case, rtol=rtol, atol=atol)
    except RuntimeError as error:
        if (fault := shortage_behind(error)) is not None:
            print(f"verify: {fault}", file=sys.stderr)
            return UNUSABLE
        print(f"test case {case} is not verified: {error}")
        return NOT_VERIFIED
    print(f"test case {case} verified: rtol {rtol:g}, atol {atol:g}")
    return VERIFIED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The option `--prove` of `qnnsweep devices`: the shortest test of a device that nobody has tried."""

from dataclasses import replace

from qnnsweep.conf.devices import PROBE
from qnnsweep.conf.errors import NOT_ALL_PASSED
from qnnsweep.conf.load import load
from qnnsweep.flows.cli.atlas import atlas
from qnnsweep.flows.cli.command import Output, Words

_USUAL = {"scheme": "8a8w", "model.arguments.operators": "[add,conv2d,linear,softmax]"}
"""What is executed, unless the command line names something else."""


def prove_device(words: Words, name: str) -> Output:
    """Execute a few operators on the device and in the simulator, and show what differs.

    The exit code is 1 if something differs, or if nothing could be compared. Raises RequestError.
    """
    named = {word.partition("=")[0] for word in words.overrides}
    of_device = [word for word in words.overrides if word.lstrip("+~").startswith(("device.", "artifacts="))]
    soc = load([f"device={name}", *of_device], config_dirs=words.config_dirs).cells[0].request.device.soc
    usual = _USUAL | ({} if soc in (None, PROBE) else {"soc": soc})
    more = [f"{key}={value}" for key, value in usual.items() if key not in named]
    shown = atlas(replace(words, overrides=[*more, *words.overrides]), against=name)
    line = f"If {name} is of a kind that docs/devices.md calls not seen, please send this report to the project."
    is_proved = all(cell["compared"] and not cell["differing"] for cell in shown.contents["cells"])
    code = shown.exit_code if is_proved else NOT_ALL_PASSED
    return replace(shown, schema="atlas", parts=[*shown.parts, line], exit_code=code)

"""The commands `devices` and `doctor`, which show the state of the devices and of this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from qnnsweep.conf.errors import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, PASSED
from qnnsweep.flows.cli.command import Output, Words


def devices(
    words: Words,
    prove: Annotated[
        str | None,
        typer.Option(
            "--prove",
            metavar="DEVICE",
            help="Execute a few operators on this device, and compare all their tensors with those of the simulator.",
        ),
    ] = None,
) -> Output:
    """Show the properties of every device and whether it can be used. Select devices with device= or farm=.

    With --prove, the device executes programs: it is the shortest test of a device that nobody has tried.
    """
    from qnnsweep.flows.cli.devices import devices_table, survey

    if prove is not None:
        from qnnsweep.flows.cli.proof import prove_device

        return prove_device(words, prove)
    statuses = survey(words.overrides, words.config_dirs)
    return Output(
        contents={"devices": list(map(asdict, statuses))},
        parts=[devices_table(statuses)],
        exit_code=PASSED if all(status.usable for status in statuses) else DEVICES_UNUSABLE,
    )


def doctor(words: Words) -> Output:
    """Check this machine and show what is missing and how to install it.

    Checks Python, torch, ExecuTorch, QNN and its backends, adb, memory, disk and the login of the Prefect server.
    """
    from qnnsweep.flows.cli.doctor import checks, checks_table

    results = checks(words.store)
    return Output(
        contents={"checks": list(map(asdict, results))},
        parts=[checks_table(results)],
        exit_code=PASSED if all(check.ok or not check.needed for check in results) else ENVIRONMENT_UNUSABLE,
    )

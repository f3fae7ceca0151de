"""The wait until a device is cool: a device that is still hot after a launch would be slow in the next launch."""

import time

from qnnsweep.tasks.devices import facts
from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.errors import DeviceError, DeviceProblem

_POLL_S = 2.0


def wait_until_cool(device: Device) -> None:
    """Wait until the hottest sensor is below `device.below_celsius`. Raises DeviceError after `device.cool_down_s`."""
    if (below := device.config.below_celsius) is None:
        return
    cool_down_s = device.config.cool_down_s
    latest = time.monotonic() + cool_down_s
    while True:
        celsius = facts.read_facts(device.transport, device.work_folder).celsius
        if celsius is None:
            raise DeviceError(f"{device.name}: device.below_celsius={below:g}, but the device has no readable sensor")
        if celsius < below:
            return
        if time.monotonic() >= latest:
            raise DeviceError(
                f"{device.name} is too hot: {celsius:.1f} °C, not below {below:g} °C within {cool_down_s:g} s",
                problem=DeviceProblem.HOT,
            )
        time.sleep(min(_POLL_S, max(0.1, latest - time.monotonic())))

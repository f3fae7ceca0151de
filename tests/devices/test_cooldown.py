"""A launch waits for a cool device."""

from __future__ import annotations

import threading
from dataclasses import replace

from qnnsweep.tasks.errors import DeviceProblem
from tests.devices.bench import WRITES, Bench


def test_a_launch_waits_until_the_device_is_cool(bench: Bench) -> None:
    bench.phone.sense(71.5)
    phone = replace(bench.over_adb, below_celsius=45, cool_down_s=60)
    cooled = threading.Event()

    def cool() -> None:
        cooled.set()
        bench.phone.sense(44.9)

    cooling = threading.Timer(3, cool)
    cooling.start()
    assert bench.measure(bench.bundle(WRITES), phone).device == "phone"
    assert cooled.is_set()
    cooling.join()


def test_a_device_that_stays_hot_or_has_no_sensor_is_quarantined(bench: Bench) -> None:
    bench.phone.sense(71.5)
    phone = replace(bench.over_adb, below_celsius=45, cool_down_s=2)
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"
    assert str(bench.farm.quarantined["phone"]) == "phone is too hot: 71.5 °C, not below 45 °C within 2 s"
    assert bench.farm.quarantined["phone"].problem is DeviceProblem.HOT
    (bench.phone.data / "sys" / "class" / "thermal" / "thermal_zone0" / "temp").unlink()
    assert bench.measure(bench.bundle(WRITES), replace(phone, name="bare"), bench.here).device == "here"
    assert str(bench.farm.quarantined["bare"]) == "bare: device.below_celsius=45, but the device has no readable sensor"

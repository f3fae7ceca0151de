"""The libraries that a program needs of the package onnxruntime-qnn on a device."""

from collections.abc import Collection

_ARM = ("aarch64", "arm64")


def missing_libraries(system: str, machine: str, files: Collection[str], arch: int | None) -> list[str]:
    """Return the names of the libraries that the package lacks on a device.

    `system`, `machine`: what Python's `platform` calls them, such as `Linux` and `aarch64`. `files`: the names of the
    package's files. `arch`: the number of the device's Hexagon architecture; None if it is not known. A machine that is
    not an ARM simulates every architecture.
    """
    begin, end = ("", ".dll") if system == "Windows" else ("lib", ".so")
    names = [f"{begin}onnxruntime_providers_qnn{end}", f"{begin}QnnHtp{end}", f"{begin}QnnSystem{end}"]
    if machine.lower() in _ARM and arch is not None:
        names += [f"{begin}QnnHtpV{arch}Stub{end}", f"libQnnHtpV{arch}Skel.so"]  # the latter runs on the Hexagon
    return [name for name in names if name not in files]

"""Known error messages whose cause is the device or its libraries, not the program that ran on the device."""

import re
from dataclasses import dataclass

from qnnsweep.tasks.errors import DeviceProblem
from qnnsweep.tasks.records import hosted

_SEARCHED_CHARACTERS = 2**16
_LINE_CHARACTERS = 1000
_MISSING_OPERATOR = r"Missing operator: \[\d+\] ([\w:.]{1,100})"
"""ExecuTorch's message in runtime/executor/method.cpp. Its only other message about this is the error code 0x14."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A known message. `evidence`: the source of the message, which is a library's text or an upstream issue."""

    name: str
    pattern: str
    remedy: str
    evidence: str


CHANNEL: dict[DeviceProblem, str] = {
    # From the tests: adb push and cat to a full disk.
    DeviceProblem.FULL: r"No space left on device|Disk quota exceeded",
    # From the tests: an adbd that accepts no key.
    DeviceProblem.UNAUTHORIZED: r"unauthorized|authorizing|failed to authenticate",
    # From the tests: a connection that stays silent.
    DeviceProblem.OFFLINE: r"\boffline\b",
    # From the tests: a killed adbd, adb server and sshd.
    DeviceProblem.LOST: (
        r"device .{0,400}?not found|\bclosed\b|couldn't read from device|read copy response|protocol fault"
    ),
}
"""Patterns of messages from adb, the device's shell and OpenSSH. The first pattern that matches is used."""


def _aihub(problem: str) -> str:
    """Return the pattern of a line that the runner for Qualcomm AI Hub wrote. Nothing else begins like this line."""
    return rf"(?m)^E executorch:qnnsweep_runner\.py\] {hosted.PROBLEM} (?:{problem})"


def _job_failed(types: str) -> str:
    return _aihub(rf"{hosted.JOB_FAILED} (?:{types}):")


_OF_PROGRAM = "RUNTIME_CRASH|RUNTIME_TIMEOUT|MODEL_UNKNOWN|MODEL_INVALID|QNN_TOOL_ERROR|UNSUPPORTED"
"""The types of failures of AI Hub that are those of a program."""

RUNNER: tuple[Signature, ...] = (
    Signature(
        name="stub_mismatch",
        pattern=r"(Stub|Skel) lib id mismatch|Error in verify skel version",
        remedy="stub, skel and libQnnHtp.so must come from one SDK: check QNN_SDK_ROOT",
        evidence="pytorch/executorch issue 8762: Stub lib id mismatch: expected (v2.28…), detected (v2.25…)",
    ),
    Signature(
        name="skel_not_found",
        pattern=r"0x80000406|Unable to load Skel Library|Failed to load skel",
        remedy="the DSP cannot load the skel: the device has another Hexagon version, or refuses unsigned skels",
        evidence="pytorch/executorch issue 2788: DspTransport.openSession qnn_open failed, 0x80000406",
    ),
    Signature(
        name="transport",
        pattern=r"Failed to create transport for device, error: 4000|Transport layer setup failed",
        remedy="the DSP accepts no session: reboot the device",
        evidence="UbiquitousLearning/mllm issue 272: Failed to create transport for device, error: 4000",
    ),
    Signature(
        name="no_pd",
        pattern=r"Failed to find available PD|createUnsignedPD .{0,400}?(failed|not supported)",
        remedy="another process holds the DSP's protection domains, or the device allows no unsigned domains",
        evidence="libQnnHtp.so of QNN 2.49.40 has this text; xororz/local-dream issue 310",
    ),
    Signature(
        name="pd_memory",
        pattern=r"Failed to map weights buffer to device|fastrpc memory map .{0,400}? failed|persistent weights buffer",
        remedy="the DSP's memory is exhausted: reboot the device, or use a device with more memory",
        evidence="pytorch/executorch issue 4517: fastrpc memory map for fd: 33 … failed with error: 0x1",
    ),
    Signature(
        name="ssr",
        pattern=r"SSR (detected|failed)|due to SSR|SSR-(dead|invalidated)",
        remedy="the DSP crashed and restarted while the program ran: run again; if it crashes again, reboot the device",
        evidence="libQnnHtp.so of QNN 2.49.40 has these texts",
    ),
    Signature(
        name="dma",
        pattern=r"(?i)(dma[- ]?buf|rpcmem)\w{0,40} .{0,400}?(fail|error)",
        remedy="the device cannot allocate shared memory: reboot it",
        evidence="the names of the driver's allocators; no such failure has been observed",
    ),
    Signature(
        name="unsupported_arch",
        pattern=r"Unsupported HTP Arch",
        remedy="the device has another Hexagon version than its configuration: correct device.soc",
        evidence="libQnnHtp.so of QNN 2.49.40 has this text",
    ),
    Signature(
        name="library_missing",
        pattern=r"(libQnn|libcdsprpc|libqnn_executorch).{0,400}?(not found|cannot open shared object)",
        remedy="the device lacks a library that the runner loads",
        evidence="the texts of the dynamic linkers",
    ),
    Signature(
        name="package_missing",
        pattern=r"No module named '(numpy|flatbuffers|onnxruntime|onnxruntime_qnn|executorch|torch|qai_hub|h5py)\b",
        remedy="the device's Python lacks a package of the runner: `qnnsweep devices` prints the line that installs it",
        evidence="the text of Python's ModuleNotFoundError",
    ),
    Signature(
        name="no_execution_provider",
        pattern=r"onnxruntime-qnn finds no HTP",
        remedy="the device has no HTP that onnxruntime-qnn can use: check its drivers and its version",
        evidence="the text of qnnsweep's runner",
    ),
    Signature(
        name="aihub_release",
        pattern=_job_failed("QNN_VERSION_MISMATCH|DSP_VERSION_MISMATCH"),
        remedy="AI Hub runs another QNN or another Hexagon: name a release in device.aihub.options="
        "'--qairt_version VERSION', and check device.soc",
        evidence="the enumeration JobFailureType of qai-hub 0.56.0",
    ),
    Signature(
        name="aihub_request",
        pattern=_job_failed("INVALID_INPUTS|INVALID_ARGUMENT"),
        remedy="AI Hub refuses the job, not the program: check device.aihub.options",
        evidence="the enumeration JobFailureType of qai-hub 0.56.0",
    ),
    Signature(
        name="aihub_memory",
        pattern=_job_failed("RUNTIME_DEVICE_OOM"),
        remedy="the hosted device's memory is exhausted: name a device with more memory in device.aihub.device",
        evidence="the enumeration JobFailureType of qai-hub 0.56.0",
    ),
    Signature(
        name="aihub_failed",
        pattern=_job_failed(rf"(?!(?:{_OF_PROGRAM}):)\w+"),
        remedy="Qualcomm AI Hub failed, not the program: run again later",
        evidence="the enumeration JobFailureType of qai-hub 0.56.0: the service, its cloud and its workers, and what a "
        "later client has in addition",
    ),
    Signature(
        name="aihub_account",
        pattern=_aihub(f"{hosted.REFUSED_TOKEN}|{hosted.NO_CONFIGURATION}"),
        remedy="run `qai-hub configure --api_token TOKEN` with the token of your account",
        evidence="the text of qnnsweep's runner",
    ),
    Signature(
        name="aihub_client",
        pattern=_aihub(hosted.NO_CLIENT),
        remedy="make the environment of device.python anew: run `pip install qai-hub flatbuffers` there",
        evidence="the text of qnnsweep's runner",
    ),
    Signature(
        name="aihub_unusable",
        pattern=_aihub(f"{hosted.NO_ANSWER}|{hosted.NO_END}"),
        remedy="`qnnsweep devices device=NAME` says whether Qualcomm AI Hub can be used",
        evidence="the text of qnnsweep's runner",
    ),
)
"""Messages about the device in the output of a runner that failed."""


def hosted_problem(printed: str) -> str | None:
    """Return the begin of the line in which the runner for Qualcomm AI Hub says why it has no results.

    It is all that decides whose fault that is. What follows are words of the service.
    """
    found = re.search(_aihub(rf"(?:{hosted.JOB_FAILED} \w+:|[^:\n]*)"), printed)
    return found and found[0]


def of_channel(text: str) -> DeviceProblem | None:
    """Return the problem that a message of adb, of the device's shell or of OpenSSH indicates."""
    searched = _searched(text)
    return next((problem for problem, pattern in CHANNEL.items() if re.search(pattern, searched)), None)


def of_runner(*outputs: str) -> Signature | None:
    """Return the first entry of `RUNNER` whose message is in a runner's outputs; None if no entry matches."""
    searched = "\n".join(_searched(output) for output in outputs)
    return next((signature for signature in RUNNER if re.search(signature.pattern, searched)), None)


def missing_operators(*outputs: str) -> list[str]:
    """Return the names of the operators for which ExecuTorch's runtime has no kernel, according to its messages."""
    names = (name for output in outputs for name in re.findall(_MISSING_OPERATOR, _searched(output)))
    return list(dict.fromkeys(names))


def _searched(text: str) -> str:
    """Return the end of a text with shortened lines. A device may print any amount of text in a line."""
    return "\n".join(line[:_LINE_CHARACTERS] for line in text[-_SEARCHED_CHARACTERS:].splitlines())

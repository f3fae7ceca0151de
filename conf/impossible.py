"""The rules for impossible cells: a backend, what a scheme computes with, and the Hexagon architecture.

A rule is here because somebody observed it, and `evidence` says where. Every other cell is tried: to fail is a result.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.errors import printable
from conf.schema import PROBE, BackendKind, DeviceConfig, Precision, Request, RunnerKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule that excludes the cells of `backend` whose scheme computes with one of `computes`, below an architecture.

    `computes`: `float32`, `float16` or members of ExecuTorch's QuantDtype without `use_`. A scheme's name is ignored.
    `others`: exclude all schemes except these instead. `arch_below`: None excludes them on every architecture.
    """

    backend: BackendKind
    computes: frozenset[str]
    others: bool = False
    arch_below: int | None = None
    reason: str
    evidence: str


RULES: tuple[Rule, ...] = (
    Rule(
        backend=BackendKind.qnn,
        computes=frozenset({"float32"}),
        reason="the HTP computes no 32-bit float graphs; ask for fp16, or for backend=xnnpack or portable",
        evidence="ExecuTorch 1.5.1 QnnExecuTorchHtpPrecision: kHtpQuantized and kHtpFp16 are all there is",
    ),
    Rule(
        backend=BackendKind.qnn,
        computes=frozenset({"float16", "fp16a8w"}),
        arch_below=69,
        reason="Hexagon v68 computes no 16-bit float; v69 or newer does",
        evidence=(
            "ExecuTorch 1.5.1 generate_htp_compiler_spec: fp16 needs Snapdragon 8 Gen 1 (v69) or newer. The compiler "
            "accepts it: on SM8350 QNN 2.49.40 kept 32-bit weights (1.7 times the bytes of SM8450's program) "
            "and the simulator was 126 dB from fp32 where v69 to v75 are 67, both for a toy CNN, which proves "
            "nothing about the phone. For fp16a8w only the documentation says so; the simulator accepts it on v68"
        ),
    ),
    Rule(
        backend=BackendKind.qnn,
        computes=frozenset({"16a16w", "16a2w"}),
        arch_below=73,
        reason="16-bit by 16-bit and 2-bit weights need Hexagon v73 or newer",
        evidence=(
            "QNN 2.49.40 on SM8350 and SM8450, every convolution and linear layer of a toy CNN: `incorrect Value 69, "
            "expected >= 73`, then `Failed to generate Qnn context binary`; SM8550 and SM8650 lower and run"
        ),
    ),
    Rule(
        backend=BackendKind.qnn,
        computes=frozenset({"16a4w_block"}),
        arch_below=73,
        reason="block quantization (LPBQ) needs Hexagon v73 or newer: older ones compute wrong results",
        evidence=(
            "the same toy CNN with blocks of 16: -4.7 dB from fp32 on SM8350 and SM8450, 8.7 dB on SM8550 and SM8650, "
            "although ExecuTorch 1.5.1 validate_lpbq_support asks for v69 only"
        ),
    ),
    Rule(
        backend=BackendKind.xnnpack,
        computes=frozenset({"float32", "8a8w"}),
        others=True,
        reason="the xnnpack backend accepts fp32 and 8a8w only",
        evidence="ExecuTorch 1.5.1 XNNPACKQuantizer: 8-bit activations and weights",
    ),
    Rule(
        backend=BackendKind.portable,
        computes=frozenset({"float32"}),
        others=True,
        reason="the portable backend accepts fp32 only",
        evidence="qnnsweep's own choice: the portable kernels are the plainest fp32 program there is to compare with",
    ),
)


def impossible_reason(request: Request) -> str | None:
    """Return in one line why the cell is impossible, and None if no rule excludes it."""
    reason = next((rule.reason for rule in RULES if _excludes(rule, request)), None)
    if reason is None and not any(can_run_on(device, request) for device in request.devices):
        return f"no device of {printable(request.where)} is a {printable(request.soc.name)} or a simulator host"
    return reason


def can_run_on(device: DeviceConfig, request: Request) -> bool:
    """Return whether the device's configuration allows the cell. An SoC to probe is only known on the device."""
    if request.backend.kind is not BackendKind.qnn:
        return device.runner is RunnerKind.python
    return device.soc in (None, PROBE, request.soc.name)


def _excludes(rule: Rule, request: Request) -> bool:
    if rule.backend is not request.backend.kind:
        return False
    if rule.arch_below is not None and request.soc.arch >= rule.arch_below:
        return False
    return (_computes(request) in rule.computes) is not rule.others


def _computes(request: Request) -> str | None:
    scheme = request.scheme
    return scheme.quant_dtype if scheme.precision is Precision.quantized else scheme.precision.name

"""What a QNN delegate in a program is started with: ExecuTorch's own options, read from the delegate's compile spec.

The layout is `backends/qualcomm/serialization/qc_compiler_spec.fbs`; a test compares it with the installed one.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatbuffers import number_types as flags

from tasks.toolchain.flatbuffer import Schema, Table, read_plain_root

COMPILE_SPEC = "qnn_compile_spec"

SCHEMA: Schema = {
    "HtpInfo": ("htp_arch", "vtcm_size_in_mb"),
    "SocInfo": ("soc_model", "htp_info", "lpai_info"),
    "QnnExecuTorchHtpBackendOptions": (
        "max_sf_buf_size",
        "performance_mode",
        "precision",
        "pd_session",
        "use_conv_hmx",
        "use_dlbc",
        "use_fold_relu",
        "use_multi_contexts",
        "use_weight_sharing",
        "use_slc_allocator",
    ),
    "QnnExecuTorchBackendOptions": ("backend_type", "htp_options", "gpu_options", "lpai_options"),
    "QnnExecuTorchOptions": (
        "soc_info",
        "backend_options",
        "library_path",
        "log_level",
        "online_prepare",
        "dump_intermediate_outputs",
        "profile_level",
        "shared_buffer",
        "is_from_context_binary",
        "saver",
        "saver_output_dir",
        "op_package_options",
        "use_mha2sha",
    ),
}

SOC_MODELS = {
    0: "UNKNOWN_SM",
    30: "SM8350",
    36: "SM8450",
    39: "SA8295",
    42: "SM8475",
    43: "SM8550",
    45: "SXR1230P",
    46: "SSG2115P",
    52: "SA8255",
    53: "SXR2230P",
    57: "SM8650",
    58: "SSG2125P",
    60: "SC8380XP",
    69: "SM8750",
    72: "SA8797",
    75: "SXR2330P",
    77: "QCS9100",
    87: "SM8850",
    93: "QCM6490",
    95: "SAR2230P",
    96: "SW6100",
    97: "SM8845",
}
"""Qualcomm's number of an SoC to its name: ExecuTorch's `QcomChipset`."""

PRECISIONS = ("quantized", "float16")
"""`QnnExecuTorchHtpPrecision`, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QnnOptions:
    soc: str
    arch: int
    vtcm_mib: int
    precision: str
    dumps: bool


def read_options(spec: bytes) -> QnnOptions:
    """Raises EvidenceError for bytes that are no such options, or whose SoC or backend is not told."""
    root = read_plain_root(
        spec, file_type="QNN compile spec", identifier=None, schema=SCHEMA, root="QnnExecuTorchOptions"
    )
    soc = _present(root, "soc_info", "SocInfo")
    htp = _present(soc, "htp_info", "HtpInfo")
    options = _present(_present(root, "backend_options", "QnnExecuTorchBackendOptions"), "htp_options", _HTP)
    precision = options.integer("precision", flags.Int32Flags)
    if not 0 <= precision < len(PRECISIONS):
        raise options.refuse("precision", f"{precision} is no precision")
    return QnnOptions(
        soc=soc_name(soc.integer("soc_model", flags.Int32Flags)),
        arch=htp.integer("htp_arch", flags.Int32Flags),
        vtcm_mib=htp.integer("vtcm_size_in_mb", flags.Uint32Flags),
        precision=PRECISIONS[precision],
        dumps=bool(root.number("dump_intermediate_outputs", flags.BoolFlags)),
    )


def soc_name(model: int) -> str:
    """An SoC that ExecuTorch has no name for keeps its number."""
    return SOC_MODELS.get(model, f"SoC model {model}")


_HTP = "QnnExecuTorchHtpBackendOptions"


def _present(table: Table, field: str, name: str) -> Table:
    child = table.table(field, name)
    if child is None:
        raise table.refuse(field, "is missing")
    return child

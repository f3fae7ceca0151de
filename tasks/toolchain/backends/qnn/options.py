"""The options that a QNN delegate is started with, read from its compile spec."""

from collections.abc import Mapping
from typing import Any

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import DelegateFacts
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate
from qnnsweep.tasks.toolchain.fbs import layout

_COMPILE_SPEC = "qnn_compile_spec"  # QCOM_QNN_COMPILE_SPEC of ExecuTorch
LAYOUT = "backends/qualcomm/serialization/qc_compiler_spec.fbs"
_PRECISIONS = {"kHtpQuantized": "quantized", "kHtpFp16": "float16"}


def options_of(delegate: CompiledDelegate) -> Mapping[str, Any]:
    """Return the options of a QNN delegate, by the names in ExecuTorch's schema. Raises EvidenceError."""
    specs = [spec.value for spec in delegate.compile_specs if spec.key == _COMPILE_SPEC]
    if len(specs) != 1:
        raise EvidenceError(f"a QNN delegate has {len(specs)} values of {_COMPILE_SPEC}")
    return layout(LAYOUT).read(specs[0], "QnnExecuTorchOptions", file_type="QNN compile spec")


def read_options(delegate: CompiledDelegate, calls: int) -> DelegateFacts:
    """Return a delegate's facts, except those in its context binary."""
    options = options_of(delegate)
    soc, backend = options["soc_info"] or {}, options["backend_options"] or {}
    htp, of_soc = backend.get("htp_options"), soc.get("htp_info")
    if htp is None or of_soc is None:
        raise EvidenceError("the options of a QNN delegate are not those of the HTP")
    return DelegateFacts(
        backend=delegate.id,
        size=len(delegate.processed),
        calls=calls,
        soc=soc["soc_model"],
        arch=int(of_soc["htp_arch"].strip("VNOE") or 0),
        vtcm_mib=of_soc["vtcm_size_in_mb"],
        precision=_PRECISIONS[htp["precision"]],
        dumps=options["dump_intermediate_outputs"],
    )

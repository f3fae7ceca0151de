"""The options that a QNN delegate is started with, read from its compile spec by ExecuTorch's own deserializer."""

from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchHtpPrecision
from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option
from executorch.backends.qualcomm.utils.constants import QCOM_QNN_COMPILE_SPEC
from executorch.exir.schema import BackendDelegate

from qnnsweep.tasks.records import DelegateFacts

_PRECISIONS = {QnnExecuTorchHtpPrecision.kHtpQuantized: "quantized", QnnExecuTorchHtpPrecision.kHtpFp16: "float16"}


def read_options(delegate: BackendDelegate, size: int, calls: int) -> DelegateFacts:
    """Return a delegate's facts, except those in its context binary. `size`: the size of that binary in bytes."""
    (spec,) = (spec.value for spec in delegate.compile_specs if spec.key == QCOM_QNN_COMPILE_SPEC)
    options = flatbuffer_to_option(spec)
    soc, htp = options.soc_info, options.backend_options.htp_options
    assert htp is not None, "the options of a delegate for the HTP"
    return DelegateFacts(
        backend=delegate.id,
        size=size,
        calls=calls,
        soc=soc.soc_model.name,
        arch=int(soc.htp_info.htp_arch),
        vtcm_mib=soc.htp_info.vtcm_size_in_mb,
        precision=_PRECISIONS[htp.precision],
        dumps=options.dump_intermediate_outputs,
    )

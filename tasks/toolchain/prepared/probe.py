"""The probe of a toolchain: a small program is compiled for two SoCs, read back from its bytes, and run.

As a program, this module is the probe itself. `probe` starts it in the environment of the toolchain.
"""

from collections.abc import Mapping
from dataclasses import asdict

from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.toolchain.prepared.answer import answer_of, print_answer
from qnnsweep.tasks.toolchain.prepared.record import ProbedProperty

SOCS = ("SM8650", "SA8797")
"""Two SoCs that differ in architecture and VTCM, so that a setting that did not arrive cannot be right by chance."""
_DEADLINE_S = 300
_LEAST_SNR_DB = 40.0


def probe(environment: Mapping[str, str]) -> tuple[ProbedProperty, ...]:
    """Return what arrived in the probe's programs. Raises ProbeFailed.

    `environment`: the variables with which a process finds the toolchain.
    """
    rows = answer_of(__name__, "the probe", environment, _DEADLINE_S)
    return tuple(ProbedProperty(**row) for row in rows)


def main() -> None:
    import torch
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, _soc_info_table
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
        to_edge_transform_and_lower_to_qnn,
    )
    from executorch.extension.pybindings import portable_lib

    from qnnsweep.tasks.toolchain.backends.qnn.switched_off import pass_manager

    pass_manager()  # switches off the passes that the toolchain names
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    inputs = (torch.randn(1, 3, 8, 8),)
    rows: list[ProbedProperty] = []
    for soc in SOCS:
        htp = _soc_info_table[QcomChipset[soc]].htp_info
        options = generate_htp_compiler_spec(use_fp16=True)
        spec = generate_qnn_executorch_compiler_spec(soc_model=QcomChipset[soc], backend_options=options)
        program = to_edge_transform_and_lower_to_qnn(net, inputs, spec).to_executorch()
        rows += _properties(program.buffer, soc, f"v{int(htp.htp_arch)}", f"{htp.vtcm_size_in_mb} MiB")
        actual = portable_lib._load_for_executorch_from_buffer(program.buffer).run_method(METHOD, list(inputs))[0]
        expected = net(*inputs)
        snr_db = 20 * torch.log10(expected.norm() / (actual - expected).norm()).item()
        right = f"an SNR above {_LEAST_SNR_DB:g} dB"
        got = right if snr_db > _LEAST_SNR_DB else f"{snr_db:.1f} dB"
        rows.append(ProbedProperty(soc=soc, name="outputs", asked=right, got=got))
    print_answer([asdict(row) for row in rows])


def _properties(buffer: bytes, soc: str, arch: str, vtcm: str) -> list[ProbedProperty]:
    """Return the properties in the bytes of a finished program."""
    from qnnsweep.tasks.toolchain.backends.qnn.audit import OPTIMIZATION_LEVEL
    from qnnsweep.tasks.toolchain.backends.qnn.backend import Qnn
    from qnnsweep.tasks.toolchain.readback.pte import read_pte

    (delegate,) = read_pte(buffer).methods[0].delegates
    facts = Qnn().read_delegate(delegate, 1)
    if facts.context is None:
        return [ProbedProperty(soc=soc, name="context", asked="readable", got=str(facts.unread))]
    context = facts.context
    is_float = "float16" in context.kernel_elements
    pairs = [
        ("SoC", soc, context.soc),
        ("arch", arch, f"v{context.arch}"),
        ("VTCM", vtcm, f"{context.vtcm_mib} MiB"),
        ("optimization level", str(OPTIMIZATION_LEVEL), str(context.optimization_level)),
        ("precision", "float16", "float16" if is_float else ", ".join(context.kernel_elements)),
    ]
    return [ProbedProperty(soc=soc, name=name, asked=asked, got=got) for name, asked, got in pairs]


if __name__ == "__main__":
    main()

"""The limits of the HTP and its compiler that are known before anything is compiled.

Each rule describes a limit that somebody observed; the rule's `evidence` says where. A cell that no rule excludes is
tried, because a failure is a result too.
"""

from qnnsweep.conf.backends import OperatorRule, Rule

CHIPSETS = (
    *("QCM6490", "QCS9100", "SA8255", "SA8295", "SA8797", "SAR2230P", "SC8380XP", "SM8350", "SM8450", "SM8475"),
    *("SM8550", "SM8650", "SM8750", "SM8845", "SM8850", "SSG2115P", "SSG2125P", "SW6100", "SXR1230P", "SXR2230P"),
    "SXR2330P",
)
"""ExecuTorch's `QcomChipset` without `UNKNOWN_SM`."""

RULES = (
    Rule(
        computes=frozenset({"float32"}),
        reason="the HTP computes no 32-bit float graphs; ask for fp16, or for backend=xnnpack or portable",
        evidence="ExecuTorch 1.5.1 QnnExecuTorchHtpPrecision has no values but kHtpQuantized and kHtpFp16",
    ),
    Rule(
        computes=frozenset({"float16", "fp16a8w"}),
        arch_below=69,
        of_compiler=True,
        reason="Hexagon v68 computes no 16-bit float; v69 or newer does",
        evidence=(
            "ExecuTorch 1.5.1 generate_htp_compiler_spec: fp16 needs Snapdragon 8 Gen 1 (v69) or newer. But the "
            "compiler accepts fp16 on v68: for a toy CNN on SM8350, QNN 2.49.40 kept 32-bit weights (1.7 times the "
            "bytes of SM8450's program), and the simulator was 126 dB from fp32, against 67 dB on v69 to v75. This "
            "proves nothing about the phone. Only the documentation excludes fp16a8w: the v68 simulator accepts fp16a8w"
        ),
    ),
    Rule(
        computes=frozenset({"16a16w", "16a2w"}),
        arch_below=73,
        of_compiler=True,
        reason="16-bit by 16-bit and 2-bit weights need Hexagon v73 or newer",
        evidence=(
            "QNN 2.49.40 on SM8350 and SM8450, for every convolution and linear layer of a toy CNN: `incorrect Value "
            "69, expected >= 73`, then `Failed to generate Qnn context binary`. On SM8550 and SM8650 it lowers and runs"
        ),
    ),
    Rule(
        computes=frozenset({"16a4w_block"}),
        arch_below=73,
        of_compiler=True,
        reason="block quantization (LPBQ) needs Hexagon v73 or newer: older ones compute wrong results",
        evidence=(
            "the same toy CNN with blocks of 16: -4.7 dB from fp32 on SM8350 and SM8450, 8.7 dB on SM8550 and SM8650, "
            "although ExecuTorch 1.5.1 validate_lpbq_support requires only v69. Single convolutions and linear layers "
            "are as accurate on v68 and v69 as on v73 (docs/atlas.md)"
        ),
    ),
)

OPERATOR_RULES = (
    OperatorRule(
        targets=frozenset({"aten.bmm.default", "aten.matmul.default", "aten.native_layer_norm.default"}),
        arch_below=73,
        reason="matrix products of activations and layer norms in 16 bits need Hexagon v73 or newer",
        remedy="choose a newer SoC, or give the operator 8-bit activations with scheme.overrides",
        evidence=(
            "docs/atlas.md: QNN 2.49.40 on SM8350 and SM8475, `incorrect Value 68, expected >= 73` for the second "
            "input of a matrix product; on SM8550 and SM8650 they are delegated"
        ),
    ),
)

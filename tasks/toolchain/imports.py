"""The libraries that a compilation needs. Their import takes three times as long as that of PyTorch alone."""
# ruff: noqa: F401

from pathlib import Path

import executorch.backends.qualcomm.export_utils
import executorch.backends.qualcomm.utils.utils
import executorch.backends.xnnpack.partition.xnnpack_partitioner
import executorch.devtools
import executorch.exir
import torchao.quantization.pt2e.quantize_pt2e
from executorch.backends.qualcomm.utils import qnn_sdk_setup

from qnnsweep.tasks.toolchain.shared_copies import share_sources

# Qualcomm's backend would run a program for a second or two to find the processor's vendor.
qnn_sdk_setup._vendor_is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
share_sources()

"""A model that a Python process holds, as files from which `qnnsweep run` repeats its run.

The module is exported in the process that holds it, because its class may be defined in a notebook. The files are a
program, its samples and the configuration of the model. The name of their folder is the digest of their content.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save
from torch.export import ExportedProgram

from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.atomic import write_atomically
from qnnsweep.tasks.toolchain.export import traced_program
from qnnsweep.tasks.toolchain.given_samples import Sample, divided, given_samples
from qnnsweep.tasks.toolchain.methods import Method, sampled_method

_MOST_CALIBRATION = 128
_PROGRAM, _SAMPLES = "qnnsweep.tasks.toolchain.program_file:program", "qnnsweep.tasks.toolchain.program_file:samples"
_DIGITS = 12

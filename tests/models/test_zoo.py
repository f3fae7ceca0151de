"""Without the extra `zoo`, its models fail with a message of one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALL = """
import sys

from tasks.errors import RequestError
from tasks.models import zoo

sys.modules["torchvision"] = None  # Python's documented way to make an import fail
try:
    getattr(zoo, sys.argv[1])(sys.argv[2], size=32, mean=[0.0] * 3, std=[1.0] * 3)
except RequestError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("factory", "architecture"), [("torchvision_classifier", "mobilenet_v2"), ("timm_classifier", "mobilevitv2_100")]
)
def test_without_the_extra_the_message_says_what_to_install(factory: str, architecture: str) -> None:
    argv = [sys.executable, "-c", CALL, factory, architecture]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    assert printed == (
        f"model {architecture} needs the optional extra zoo "
        "(torchvision: import of torchvision halted; None in sys.modules): pip install 'qnnsweep[zoo]'"
    )

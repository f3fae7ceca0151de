"""Operator cases on devices: what they return is compared with the simulator, and how they fail is an outcome."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.atlas_plan import atlas_overrides, planned
from qnnsweep.conf.devices import DeviceConfig, RunnerKind, SshConfig, TransportKind
from qnnsweep.flows.cells.cases import case_options
from qnnsweep.flows.cells.resources import Resources, prepare
from qnnsweep.tasks.atlas.compare_cases import compare_cases
from qnnsweep.tasks.atlas.compile_cases import compile_cases, compile_cases_task
from qnnsweep.tasks.atlas.list_cases import list_cases
from qnnsweep.tasks.atlas.measure_cases import measure_cases
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.records import CaseOutcome, CompiledCases
from qnnsweep.tasks.records.options import CaseOptions
from tests.atlas.test_try_cases import collection
from tests.devices.bare_python import bare_python
from tests.devices.loopback import Sshd, running

pytestmark = pytest.mark.toolchain

PYTHON = """#!{python} -P
import os, pathlib, signal, subprocess, sys
ended = subprocess.run([{python!r}, *sys.argv[1:]])
outputs = [*pathlib.Path("outputs").glob("*.raw")]
{then}
sys.exit(ended.returncode)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Two cases that were compiled for other devices: one with a program, and one without."""

    cases: CompiledCases
    options: CaseOptions
    resources: Resources

    def outcomes(self, *devices: DeviceConfig) -> tuple[CaseOutcome, ...]:
        """Measure and compare the cases."""
        options, tools = self.options, self.resources
        measured = measure_cases(self.cases, devices, options.soc, store=tools.store, farm=tools.farm)
        return compare_cases(self.cases, measured, options, store=tools.store, workers=tools.workers).outcomes


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        words = [f"artifacts={tmp_path_factory.mktemp('atlas')}", "scheme=8a8w"]
        plan = planned(atlas_overrides(words), ())
        ask, resources = plan.cells[0].request, prepare(plan)
        model = collection("planted_cases:cases", faults=["none", "raise_in_lower", "skipped"])
        options = case_options(replace(ask, model=model), resources.workers.identity)
        tools: Any = {"store": resources.store, "workers": resources.workers}
        cases = compile_cases(list_cases(model, "", **tools), options, "", True, **tools)
        yield Compiled(cases=cases, options=options, resources=resources)


def here(folder: Path, then: str, name: str = "board") -> DeviceConfig:
    """Return a device with ONNX Runtime on this machine. `then`: what its Python does when the runner has ended."""
    python = folder / f"python-{name}"
    python.write_text(PYTHON.format(python=sys.executable, then=then))
    python.chmod(0o755)
    work = str(folder / name)
    return DeviceConfig(name=name, python=str(python), work_folder=work, runner=RunnerKind.onnxruntime)


def test_a_board_behind_an_sshd_returns_what_the_simulator_returns(compiled: Compiled, tmp_path: Path) -> None:
    sshd = Sshd(folder=tmp_path / "sshd")
    with running(sshd):
        board = DeviceConfig(
            name="board",
            transport=TransportKind.ssh,
            address=f"root@127.0.0.1:{sshd.port}",
            ssh=SshConfig(known_hosts=str(sshd.known_hosts), key_file=str(sshd.key), agent=False),
            work_folder=str(tmp_path / "work"),
            lock_folder=str(tmp_path),
            python=bare_python(tmp_path / "python"),
            runner=RunnerKind.onnxruntime,
        )
        healthy, refused, skipped = compiled.outcomes(board)
    assert (healthy.state, healthy.executed_on) == ("exact", "board")
    assert (healthy.simulator_equal, healthy.simulator_steps, healthy.simulator_why) == (1.0, 0.0, None)
    assert (refused.state, refused.executed_on, refused.simulator_equal) == ("refused", None, None)
    assert (skipped.state, skipped.log) == ("not_exported", None)


@pytest.mark.parametrize(
    ("then", "state", "why"),
    [
        ("sys.exit('the DSP is on fire')", "refused", "the shipping program ended with exit code 1 on board"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "aborted", "the shipping program ended with SIGSEGV on board"),
        ("outputs[0].write_bytes(b'12345678')", "wrong", "output 0 (output) has 8 bytes; float32[2, 3] has 24"),
    ],
)
def test_a_program_that_fails_on_a_device_is_the_outcome_of_its_case(
    compiled: Compiled, tmp_path: Path, then: str, state: str, why: str
) -> None:
    healthy, _, _ = compiled.outcomes(here(tmp_path, then))
    assert (healthy.state, healthy.stage) == (state, "execute")
    assert (healthy.why or "").startswith(why)
    assert healthy.targets == ("aten.add.Tensor",)
    beside = healthy.executed_on, healthy.simulator_equal, healthy.simulator_why
    assert beside == ("board", None, "the simulator executes the case")
    assert healthy.log is not None


def test_a_reply_that_was_damaged_once_is_asked_for_again(compiled: Compiled, tmp_path: Path) -> None:
    once = tmp_path / "once"
    then = f"if not os.path.exists({str(once)!r}): open({str(once)!r}, 'x'); outputs[0].write_bytes(b'')"
    healthy, _, _ = compiled.outcomes(here(tmp_path, then))
    assert once.exists()
    assert (healthy.state, healthy.simulator_equal) == ("exact", 1.0)


def test_another_device_continues_when_one_fails_and_without_one_no_case_has_an_outcome(
    compiled: Compiled, tmp_path: Path
) -> None:
    broken = replace(here(tmp_path, "", "broken"), python="/no/python")
    with pytest.raises(DeviceError, match="/no/python"):
        compiled.outcomes(broken)
    healthy, _, _ = compiled.outcomes(broken, here(tmp_path, "", "second"))
    assert (healthy.state, healthy.executed_on) == ("exact", "second")


def test_a_stored_batch_with_another_runner_is_not_used(compiled: Compiled) -> None:
    accepts: Any = compile_cases_task.cache_policy.accepts  # type: ignore[union-attr]
    evil = compiled.resources.store.put_bytes(b"import os")
    (first, *_), packed = compiled.cases.cases, compiled.cases.cases[0].bundle
    assert packed is not None
    assert packed.onnxruntime is not None
    assert accepts(compiled.cases)
    for bundle in (replace(packed, runner=evil), replace(packed, onnxruntime=replace(packed.onnxruntime, runner=evil))):
        assert not accepts(CompiledCases(cases=(replace(first, bundle=bundle),)))

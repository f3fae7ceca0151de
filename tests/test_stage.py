"""A stage as a Prefect task: when its cached result is used, and which files it leaves."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.runtime import task_run
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.tasks.errors import MachineFault, ToolchainError
from qnnsweep.tasks.records import (
    Blob,
    Command,
    ExportedMethod,
    Launch,
    ModelFacts,
    QuantizedMethod,
    QuantizedModel,
    StageCall,
    TensorSpec,
    Toolchain,
)
from qnnsweep.tasks.stage import configure_task, is_reused, result_name, stage
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.store import Store
from tests.flows.cluster import client_settings
from tests.sample_records import COMPARISON, TOOLCHAIN

COMPUTED, REUSED = ["running", "done"], ["running", "reused"]


@pytest.fixture(scope="module", autouse=True)
def prefect_server(prefect_api: httpx.Client) -> Iterator[None]:
    with temporary_settings(client_settings(prefect_api) | {PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "artifacts")
    store.check_writable()
    return store


@dataclass(frozen=True, kw_only=True)
class WorkerPool:
    """The part of the worker pool that a cache key depends on."""

    identity: Toolchain


class StageHarness:
    """Runs a stage that records its runs and its states."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.states: list[str] = []
        self.ran: list[str] = []

    def run(
        self,
        *key_inputs: Any,
        version: int = 1,
        name: str = "example",
        toolchain: Toolchain = TOOLCHAIN,
        resources: str = "",
        make: Callable[[Store], Any] = lambda _: Command(argv=("a",), exit_code=0, seconds=0.5),
        reads: Callable[..., object] | None = None,
        refresh: bool = False,
        accepts: Callable[[Any], bool] | None = None,
    ) -> Any:
        """Run the stage in a new flow with a new `Store`, as another sweep would."""
        new_store = Store(self.store.root)

        def example(what: Any = None, measure: Any = None, *, store: Store, workers: WorkerPool, resources: str) -> Any:
            self.ran.append(str(task_run.name))
            return make(store)

        stage_task = stage(example, version=version, key_inputs=reads, accepts=accepts)
        task = configure_task(stage_task, name, store=new_store, on_change=self.states.append, refresh=refresh)

        @flow
        def sweep() -> Any:
            return task(*key_inputs, store=new_store, workers=WorkerPool(identity=toolchain), resources=resources)

        return sweep()


@pytest.fixture
def harness(store: Store) -> StageHarness:
    return StageHarness(store)


def records(store: Store) -> list[Path]:
    return sorted((store.root / "results" / "records").glob("*"))


def test_equal_key_inputs_are_computed_once(harness: StageHarness) -> None:
    first = harness.run("input", MeasureConfig(iterations=3))
    assert harness.run("input", MeasureConfig(iterations=3)) == first
    assert harness.states == COMPUTED + REUSED
    assert len(harness.ran) == 1


def test_different_key_inputs_are_computed_again(harness: StageHarness) -> None:
    harness.run("input", MeasureConfig())
    harness.run("another input", MeasureConfig())
    harness.run("input", MeasureConfig(warm_up=1))
    harness.run(["input"], MeasureConfig())
    harness.run(None, MeasureConfig())
    assert harness.states == COMPUTED * 5


def test_another_version_of_the_stage_is_computed_again(harness: StageHarness) -> None:
    harness.run("input", version=1)
    harness.run("input", version=2)
    harness.run("input", version=1)
    assert harness.states == COMPUTED + COMPUTED + REUSED


def test_another_toolchain_is_computed_again(harness: StageHarness) -> None:
    harness.run("input")
    for part in ("python", "torch", "executorch", "torchao", "qnn"):
        harness.run("input", toolchain=replace(TOOLCHAIN, **{part: "another"}))
    assert harness.states == COMPUTED * 6


def test_what_a_stage_does_not_read_is_not_in_the_cache_key(harness: StageHarness) -> None:
    def read(what: str, measure: MeasureConfig) -> object:
        return what, measure.iterations

    harness.run("input", MeasureConfig(iterations=3), reads=read)
    harness.run("input", MeasureConfig(iterations=3, warm_up=1), reads=read)
    harness.run("input", MeasureConfig(iterations=4), reads=read)
    assert harness.states == COMPUTED + REUSED + COMPUTED


def test_a_refreshed_result_is_found_by_later_runs(harness: StageHarness) -> None:
    harness.run("input")
    later = harness.run("input", refresh=True, make=lambda _: Command(argv=("b",), exit_code=0, seconds=0.5))
    assert harness.run("input") == later
    assert harness.states == COMPUTED + COMPUTED + REUSED


def test_keyword_arguments_are_not_in_the_cache_key(harness: StageHarness) -> None:
    harness.run("input", resources="a small pool")
    harness.run("input", resources="a big pool")
    harness.run("input", name="the stage of another cell")
    assert harness.states == COMPUTED + REUSED + REUSED


def test_the_seconds_log_and_labels_of_a_record_are_not_in_the_cache_key(harness: StageHarness) -> None:
    blob = Blob(sha256="0" * 64, size=1)
    spec = TensorSpec(name="x", shape=(1,), dtype="float32")
    exported = ExportedMethod(
        program=blob, inputs=(spec,), outputs=(spec,), calibration=None, calibration_samples=0,
        evaluation=blob, sample_names=("a",), labels=(None,), outputs_eager=blob,
        outputs_exported=blob, input_mistakes=(), mistaken_outputs=blob,
    )  # fmt: skip
    method = QuantizedMethod(exported=exported, program=blob, outputs_quantized=blob)
    quantized = QuantizedModel(model=ModelFacts(name="m", weights="random"), methods=(method,))
    harness.run(quantized)
    harness.run(replace(quantized, made=(StageCall(stage="export", seconds=9.0, log=blob),)))
    assert harness.states == COMPUTED + REUSED
    harness.run(replace(quantized, model=replace(quantized.model, name="another name")))
    assert harness.states == COMPUTED + REUSED * 2
    harness.run(replace(quantized, methods=(replace(method, float_weights=blob),)))
    assert harness.states == COMPUTED + REUSED * 2 + COMPUTED


def test_the_times_of_a_measurement_are_not_in_the_cache_key_of_the_changes_that_are_tried(
    harness: StageHarness,
) -> None:
    assert COMPARISON.profile
    harness.run(COMPARISON)
    harness.run(replace(COMPARISON, profile=()))
    assert harness.states == COMPUTED + REUSED
    harness.run(replace(COMPARISON, operators=()))
    assert harness.states == COMPUTED + REUSED + COMPUTED


def test_a_result_is_a_parquet_file_of_the_record_named_after_stage_and_key(
    harness: StageHarness, store: Store
) -> None:
    record = harness.run("input")
    (file,) = records(store)
    assert file.read_bytes()[:4] == b"PAR1"
    assert decode(file.read_bytes()) == record
    assert file.read_bytes() == encode(record)
    stem, _, key = file.stem.partition("-")
    assert (stem, len(key), file.suffix) == ("example", 64, ".parquet")
    assert [path.name for path in (store.root / "results" / "keys").iterdir()] == [file.name]
    assert list(store.partial.iterdir()) == []


def harm_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def harm_flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    third = len(data) // 3
    file.write_bytes(bytes(byte ^ (third < index < 2 * third) for index, byte in enumerate(data)))


def harm_other_file(file: Path) -> None:
    file.write_text("PAR1 but not really PAR1")


def test_a_damaged_result_is_computed_again_and_replaced(harness: StageHarness, store: Store) -> None:
    first = harness.run("input")
    (file,) = records(store)
    data = file.read_bytes()
    for harm in (harm_cut, harm_flip, harm_other_file, Path.unlink):
        harm(file)
        assert harness.run("input") == first
        assert file.read_bytes() == data
    assert harness.states == COMPUTED * 5
    assert harness.run("input") == first
    assert harness.states == COMPUTED * 5 + REUSED


class _Touch:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_metadata_that_name_another_serializer_and_another_file_are_not_used(
    harness: StageHarness, store: Store, tmp_path: Path
) -> None:
    first = harness.run("input")
    (file,) = records(store)
    file.with_name("evil").write_bytes(base64.encodebytes(pickle.dumps(_Touch(tmp_path / "executed"))))
    key = store.root / "results" / "keys" / file.name
    for serializer in ({"type": "pickle"}, {"type": "pickle", "picklelib": "this"}, {"type": "json"}):
        key.write_text(json.dumps({"storage_key": "evil", "serializer": serializer}))
        assert harness.run("input") == first
    assert harness.states == COMPUTED + REUSED * 3
    assert not (tmp_path / "executed").exists()


def test_a_result_that_the_stage_does_not_accept_is_computed_again(harness: StageHarness, store: Store) -> None:
    def is_ours(command: Command) -> bool:
        return command.argv == ("a",)

    first = harness.run("input", accepts=is_ours)
    (file,) = records(store)
    file.write_bytes(encode(replace(first, argv=("evil",))))
    assert harness.run("input", accepts=is_ours) == first
    assert harness.run("input", accepts=is_ours) == first
    assert harness.states == COMPUTED + COMPUTED + REUSED


def test_damaged_metadata_have_no_effect(harness: StageHarness, store: Store) -> None:
    first = harness.run("input")
    (file,) = records(store)
    key = store.root / "results" / "keys" / file.name
    for data in (b"", b"{", key.read_bytes().replace(file.stem[-8:].encode(), b"00000000")):
        key.write_bytes(data)
        assert harness.run("input") == first
    assert harness.states == COMPUTED + REUSED * 3


def launch(store: Store) -> Launch:
    """A record that names two blobs."""
    program, inputs = store.put_bytes(b"program"), store.put_bytes(b"inputs")
    return Launch(
        name="debug", program=program, input_list=inputs, samples=1, debug=True, debug_buffer_bytes=1, events=5,
        iterations=1, warm_up=0, methods=(),
    )  # fmt: skip


def test_a_result_whose_blob_is_gone_or_cut_is_computed_again(harness: StageHarness, store: Store) -> None:
    first = harness.run("input", make=launch)
    store.path(first.program).unlink()
    assert harness.run("input", make=launch) == first
    blob = store.path(first.input_list)
    blob.chmod(0o600)
    os.truncate(blob, 3)
    assert harness.run("input", make=launch) == first
    assert harness.states == COMPUTED * 3
    assert harness.run("input", make=launch) == first
    assert harness.states == COMPUTED * 3 + REUSED
    assert (store.read(first.program), store.read(first.input_list)) == (b"program", b"inputs")


def test_a_failure_is_reported_and_raised_unchanged_and_the_next_run_tries_again(
    harness: StageHarness, store: Store
) -> None:
    def spoil(_: Store) -> Any:
        raise ToolchainError("lower failed: SIGSEGV", stage="lower", cause="SIGSEGV", log="0" * 64)

    with pytest.raises(ToolchainError, match=r"^lower failed: SIGSEGV$") as failed:
        harness.run("input", make=spoil)
    assert (failed.value.stage, failed.value.cause, failed.value.log) == ("lower", "SIGSEGV", "0" * 64)
    assert harness.states == ["running", "failed"]
    assert records(store) == []
    harness.run("input")
    assert harness.states == ["running", "failed", *COMPUTED]


def test_a_fault_of_the_machine_is_not_cached(harness: StageHarness, store: Store) -> None:
    def run_short(_: Store) -> Any:
        raise MachineFault("this machine is short of memory")

    with pytest.raises(MachineFault, match=r"^this machine is short of memory$"):
        harness.run("input", make=run_short)
    assert records(store) == []
    harness.run("input")
    assert harness.states == ["running", "failed", *COMPUTED]


def test_a_result_that_cannot_be_stored_is_used_nevertheless(harness: StageHarness, store: Store) -> None:
    (store.root / "results").touch()
    first = harness.run("input")
    assert harness.run("input") == first == Command(argv=("a",), exit_code=0, seconds=0.5)
    assert harness.states == COMPUTED + COMPUTED
    assert list(store.partial.iterdir()) == []


def test_a_task_run_has_the_given_name_whatever_its_characters(harness: StageHarness) -> None:
    names = ["export digits_cnn", "lower {model} · {0} }{", "名前 %s $(x)"]
    for name in names:
        harness.run(name, name=name)
    assert harness.ran == names


def test_only_a_reused_result_counts_as_reused(store: Store) -> None:
    def example(what: str, *, store: Store) -> Command:
        return Command(argv=(what,), exit_code=0, seconds=0.0)

    task = stage(example, version=1)

    @flow
    def sweep() -> list[bool]:
        futures = [
            configure_task(task, "example", store=store, on_change=lambda _: None).submit(what, store=store)
            for what in ("a", "b")
        ]
        for future in futures:
            future.wait()
        assert {result_name(future.state) for future in futures} == {path.name for path in records(store)}
        return [is_reused(future.state) for future in futures]

    assert sweep() == [False, False]
    assert sweep() == [True, True]

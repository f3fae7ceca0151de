"""A stage as a Prefect task: what finds its result again, what does not, and what lies on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.runtime import task_run
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from conf.schema import MeasureConfig
from tasks.errors import ToolchainError
from tasks.records import Blob, Command, ExportedModel, Launch, QuantizedModel, TensorSpec, Toolchain
from tasks.stage import configure_task, is_reused, result_name, stage
from tasks.storage.codec import decode, encode
from tasks.storage.store import Store
from tests.flows.cluster import address

TOOLCHAIN = Toolchain(python="3.11.7", torch="2.13.0", executorch="1.5.1", torchao="0.18.0", qnn="v2.49.40.260701")
MADE, REUSED = ["running", "done"], ["running", "reused"]


@pytest.fixture(scope="module", autouse=True)
def prefect_server(prefect_api: httpx.Client) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: address(prefect_api), PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "artifacts")


@dataclass(frozen=True, kw_only=True)
class WorkerPool:
    """All that a cache key sees of the toolchain's workers."""

    identity: Toolchain


class Kitchen:
    """A stage that counts how often it really runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.states: list[str] = []
        self.ran: list[str] = []

    def cook(
        self,
        *key_inputs: Any,
        version: int = 1,
        cached: bool = True,
        name: str = "cook",
        toolchain: Toolchain = TOOLCHAIN,
        resources: str = "",
        make: Callable[[Store], Any] = lambda _: Command(argv=("a",), exit_code=0, seconds=0.5),
        reads: Callable[..., object] | None = None,
        refresh: bool = False,
    ) -> Any:
        """Run the stage in a flow and with a store of its own, as another sweep would."""
        own = Store(self.store.root)

        def cook(what: Any = None, measure: Any = None, *, store: Store, workers: WorkerPool, resources: str) -> Any:
            self.ran.append(str(task_run.name))
            return make(store)

        made = stage(cook, version=version, cached=cached, key_inputs=reads)
        task = configure_task(made, name, store=own, on_change=self.states.append, refresh=refresh)

        @flow
        def sweep() -> Any:
            return task(*key_inputs, store=own, workers=WorkerPool(identity=toolchain), resources=resources)

        return sweep()


@pytest.fixture
def kitchen(store: Store) -> Kitchen:
    return Kitchen(store)


def records(store: Store) -> list[Path]:
    return sorted((store.root / "results" / "records").glob("*"))


def test_equal_key_inputs_are_computed_once(kitchen: Kitchen) -> None:
    first = kitchen.cook("soup", MeasureConfig(iterations=3))
    assert kitchen.cook("soup", MeasureConfig(iterations=3)) == first
    assert kitchen.states == MADE + REUSED
    assert len(kitchen.ran) == 1


def test_different_key_inputs_are_computed_again(kitchen: Kitchen) -> None:
    kitchen.cook("soup", MeasureConfig())
    kitchen.cook("stew", MeasureConfig())
    kitchen.cook("soup", MeasureConfig(warm_up=1))
    kitchen.cook(["soup"], MeasureConfig())
    kitchen.cook(None, MeasureConfig())
    assert kitchen.states == MADE * 5


def test_another_version_of_the_stage_is_computed_again(kitchen: Kitchen) -> None:
    kitchen.cook("soup", version=1)
    kitchen.cook("soup", version=2)
    kitchen.cook("soup", version=1)
    assert kitchen.states == MADE + MADE + REUSED


def test_another_toolchain_is_computed_again(kitchen: Kitchen) -> None:
    kitchen.cook("soup")
    for part in ("python", "torch", "executorch", "torchao", "qnn"):
        kitchen.cook("soup", toolchain=replace(TOOLCHAIN, **{part: "another"}))
    assert kitchen.states == MADE * 6


def test_what_a_stage_does_not_read_is_not_in_the_cache_key(kitchen: Kitchen) -> None:
    def read(what: str, measure: MeasureConfig) -> object:
        return what, measure.iterations

    kitchen.cook("soup", MeasureConfig(iterations=3), reads=read)
    kitchen.cook("soup", MeasureConfig(iterations=3, warm_up=1), reads=read)
    kitchen.cook("soup", MeasureConfig(iterations=4), reads=read)
    assert kitchen.states == MADE + REUSED + MADE


def test_a_refreshed_result_is_found_by_later_runs(kitchen: Kitchen) -> None:
    kitchen.cook("soup")
    later = kitchen.cook("soup", refresh=True, make=lambda _: Command(argv=("b",), exit_code=0, seconds=0.5))
    assert kitchen.cook("soup") == later
    assert kitchen.states == MADE + MADE + REUSED


def test_keyword_arguments_are_not_in_the_cache_key(kitchen: Kitchen) -> None:
    kitchen.cook("soup", resources="a small pot")
    kitchen.cook("soup", resources="a big pot")
    kitchen.cook("soup", name="another cell's soup")
    assert kitchen.states == MADE + REUSED + REUSED


def test_what_does_not_change_a_record_does_not_change_what_is_made_of_it(kitchen: Kitchen) -> None:
    blob = Blob(sha256="0" * 64, size=1)
    spec = TensorSpec(name="x", shape=(1,), dtype="float32")
    exported = ExportedModel(
        model="m", program=blob, inputs=(spec,), outputs=(spec,), calibration=None, calibration_samples=0,
        evaluation=blob, sample_names=("a",), labels=(None,), outputs_eager=blob,
        outputs_exported=blob, input_mistakes=(), mistaken_outputs=blob, weights="random",
    )  # fmt: skip
    quantized = QuantizedModel(
        exported=exported, scheme="fp16", program=blob, quantized=False, outputs_quantized=blob, seconds=1.0
    )
    kitchen.cook(quantized)
    kitchen.cook(replace(quantized, seconds=2.0, log=blob, exported=replace(exported, seconds=9.0, log=blob)))
    assert kitchen.states == MADE + REUSED
    kitchen.cook(replace(quantized, scheme="another name"))
    assert kitchen.states == MADE + REUSED * 2
    kitchen.cook(replace(quantized, quantized=True))
    assert kitchen.states == MADE + REUSED * 2 + MADE


def test_a_result_is_a_parquet_file_of_the_record_named_after_stage_and_key(kitchen: Kitchen, store: Store) -> None:
    made = kitchen.cook("soup")
    (file,) = records(store)
    assert file.read_bytes()[:4] == b"PAR1"
    assert decode(file.read_bytes()) == made
    assert file.read_bytes() == encode(made)
    stem, _, key = file.stem.partition("-")
    assert (stem, len(key), file.suffix) == ("cook", 64, ".parquet")
    assert [path.name for path in (store.root / "results" / "keys").iterdir()] == [file.name]
    assert list(store.partial.iterdir()) == []


def test_a_stage_that_is_not_cached_leaves_nothing_and_runs_every_time(kitchen: Kitchen, store: Store) -> None:
    kitchen.cook("soup", cached=False)
    kitchen.cook("soup", cached=False)
    assert kitchen.states == MADE + MADE
    assert not (store.root / "results").exists()


def harm_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def harm_flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    third = len(data) // 3
    file.write_bytes(bytes(byte ^ (third < index < 2 * third) for index, byte in enumerate(data)))


def harm_other_file(file: Path) -> None:
    file.write_text("PAR1 but not really PAR1")


def test_a_damaged_result_is_computed_again_and_mended(kitchen: Kitchen, store: Store) -> None:
    first = kitchen.cook("soup")
    (file,) = records(store)
    whole = file.read_bytes()
    for harm in (harm_cut, harm_flip, harm_other_file, Path.unlink):
        harm(file)
        assert kitchen.cook("soup") == first
        assert file.read_bytes() == whole
    assert kitchen.states == MADE * 5
    assert kitchen.cook("soup") == first
    assert kitchen.states == MADE * 5 + REUSED


def launch(store: Store) -> Launch:
    """A record that names two blobs."""
    program, inputs = store.put_bytes(b"program"), store.put_bytes(b"inputs")
    return Launch(
        name="debug", program=program, input_list=inputs, samples=1, debug=True, debug_buffer_bytes=1, iterations=1,
        warm_up=0,
    )  # fmt: skip


def test_a_result_whose_blob_is_gone_or_cut_is_computed_again(kitchen: Kitchen, store: Store) -> None:
    first = kitchen.cook("soup", make=launch)
    store.path(first.program).unlink()
    assert kitchen.cook("soup", make=launch) == first
    blob = store.path(first.input_list)
    blob.chmod(0o600)
    os.truncate(blob, 3)
    assert kitchen.cook("soup", make=launch) == first
    assert kitchen.states == MADE * 3
    assert kitchen.cook("soup", make=launch) == first
    assert kitchen.states == MADE * 3 + REUSED
    assert (store.read(first.program), store.read(first.input_list)) == (b"program", b"inputs")


def test_a_failure_is_told_raised_as_it_is_and_tried_again_next_time(kitchen: Kitchen, store: Store) -> None:
    def spoil(_: Store) -> Any:
        raise ToolchainError("lower failed: SIGSEGV", stage="lower", cause="SIGSEGV", log="0" * 64)

    with pytest.raises(ToolchainError, match=r"^lower failed: SIGSEGV$") as failed:
        kitchen.cook("soup", make=spoil)
    assert (failed.value.stage, failed.value.cause, failed.value.log) == ("lower", "SIGSEGV", "0" * 64)
    assert kitchen.states == ["running", "failed"]
    assert records(store) == []
    kitchen.cook("soup")
    assert kitchen.states == ["running", "failed", *MADE]


def test_a_result_that_cannot_be_kept_is_used_all_the_same(kitchen: Kitchen, store: Store) -> None:
    (store.root / "results").touch()
    first = kitchen.cook("soup")
    assert kitchen.cook("soup") == first == Command(argv=("a",), exit_code=0, seconds=0.5)
    assert kitchen.states == MADE + MADE
    assert list(store.partial.iterdir()) == []


def test_a_run_bears_the_name_it_was_given(kitchen: Kitchen) -> None:
    names = ["export digits_cnn", "lower {model} · {0} }{", "名前 %s $(x)"]
    for name in names:
        kitchen.cook("soup", name=name, cached=False)
    assert kitchen.ran == names


def test_only_a_reused_result_counts_as_reused(store: Store) -> None:
    def cook(what: str, *, store: Store) -> Command:
        return Command(argv=(what,), exit_code=0, seconds=0.0)

    task = stage(cook, version=1)

    @flow
    def sweep() -> list[bool]:
        futures = [
            configure_task(task, "cook", store=store, on_change=lambda _: None).submit(what, store=store)
            for what in ("a", "b")
        ]
        for future in futures:
            future.wait()
        assert {result_name(future.state) for future in futures} == {path.name for path in records(store)}
        return [is_reused(future.state) for future in futures]

    assert sweep() == [False, False]
    assert sweep() == [True, True]

"""What a stage computes, once for all processes of the tests: they share a store, as the product's runs do."""

from __future__ import annotations

import fcntl
import inspect
from typing import Any, TypeVar, cast

from prefect import Task

from qnnsweep.tasks.stage import stored_result
from qnnsweep.tasks.storage.codec import encode
from qnnsweep.tasks.storage.manifest import KEYS, RECORDS
from qnnsweep.tasks.storage.store import Store

R = TypeVar("R")


def computed(stage: Task[..., R], *values: Any, store: Store, **tools: Any) -> R:
    """Return a stage's result for these positional arguments: the stored one if a process of the tests has stored it.

    A process that needs a result that another process is computing waits for it.
    """
    arguments = inspect.signature(stage.fn).bind(*values, store=store, **tools)
    arguments.apply_defaults()
    toolchain = getattr(tools.get("workers"), "identity", None)
    name = cast("Any", stage.cache_policy).result_name(arguments.args, toolchain)
    with (store.root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = stored_result(stage, toolchain, *arguments.args, store=store)
        if result is None:
            result = stage.fn(*arguments.args, **arguments.kwargs)
            store.files.write(f"{RECORDS}/{name}", encode(result))
            store.files.write(f"{KEYS}/{name}", b"{}")
        return result

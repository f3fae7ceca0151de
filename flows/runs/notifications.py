"""Notifications about regressions, through notification blocks of Prefect: a webhook, Slack, e-mail …"""

from collections.abc import Sequence
from typing import Any, cast

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.logging import get_logger

from qnnsweep.flows.runs.regressions import regressions_markdown
from qnnsweep.flows.runs.results import SweepResult, report_name
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage.store import Store


def load_notifiers(names: Sequence[str]) -> list[NotificationBlock]:
    """Return the notification blocks with these names. Raises RequestError for a name without a notification block.

    `names`: one `<type>/<name>` per block, as in Prefect's UI.
    """
    notifiers: list[NotificationBlock] = []
    for name in names:
        try:
            block = cast("Any", Block.load(name))
        except (ValueError, RuntimeError) as error:
            raise RequestError(
                f"trend.notify={name}: this Prefect server has no such block; create one in its UI under Blocks, for "
                "example of the type Custom Webhook: custom-webhook/NAME"
            ) from error
        if not isinstance(block, NotificationBlock):
            raise RequestError(
                f"trend.notify={name}: a {type(block).__name__} is not a notification block; name a notification block"
            )
        notifiers.append(block)
    return notifiers


def send(notifiers: Sequence[NotificationBlock], result: SweepResult, store: Store) -> None:
    """Send the regressions of a run, if it has any. A notifier that cannot be reached does not fail the run."""
    counts = result.counts
    if not counts.regressed:
        return
    run = result.run.run_id
    subject = f"qnnsweep: {counts.regressions_in_words()} in {run}"
    body = f"{regressions_markdown(counts)}\n{store.link(report_name(run))}\n"
    for notifier in notifiers:
        try:
            cast("Any", notifier).notify(body, subject)  # synchronous here, although it is declared as a coroutine
        except Exception as error:  # noqa: BLE001 - an external service may fail in any way
            kind = type(notifier).__name__
            get_logger("qnnsweep").error("%s was not notified: %s: %s", kind, type(error).__name__, error)

"""Tells people what got worse, by notification blocks that they keep in Prefect: a webhook, Slack, e-mail …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.logging import get_logger

from flows.runs.regressions import count, regressions_markdown
from flows.runs.results import SweepResult, report_name
from tasks.errors import RequestError
from tasks.report.format import plural
from tasks.storage.store import Store


def blocks(names: Sequence[str]) -> list[NotificationBlock]:
    """The blocks of these names, `<type>/<name>` as the UI shows them. Raises RequestError for one that is none."""
    found: list[NotificationBlock] = []
    for name in names:
        try:
            block = cast("Any", Block.load(name))
        except (ValueError, RuntimeError) as error:
            raise RequestError(
                f"trend.notify={name}: this Prefect server has no such block; make one in its UI under Blocks, for "
                "example of the type Custom Webhook: custom-webhook/NAME"
            ) from error
        if not isinstance(block, NotificationBlock):
            raise RequestError(f"trend.notify={name}: a {type(block).__name__} notifies nobody; a notification block")
        found.append(block)
    return found


def tell(them: Sequence[NotificationBlock], result: SweepResult, store: Store) -> None:
    """Send each what got worse in this run; nothing where nothing did. One that cannot be reached stops no night."""
    if not (worse := count(result.trends)):
        return
    run = result.run.run_id
    subject = f"qnnsweep: {plural(worse, 'regression')} in {run}"
    body = f"{regressions_markdown(result.trends)}\n{store.link(report_name(run))}\n"
    for block in them:
        try:
            cast("Any", block).notify(body, subject)  # declared a coroutine; outside of one Prefect's own are none
        except Exception as error:  # noqa: BLE001 - the border to other people's services
            get_logger("qnnsweep").error("%s was not told: %s: %s", type(block).__name__, type(error).__name__, error)

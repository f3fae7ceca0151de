"""The events in Prefect from which automations can start: `qnnsweep.regressed`, one per cell that got worse in a run,
and `qnnsweep.ended`, one per run.

The labels of the resource of `qnnsweep.regressed` name the cell, so that an automation can match a model. Its payload
has what got worse. Prefect's own events of a flow run have only those tags with which it was created; `qnnsweep.ended`
has all of them.
"""

from collections.abc import Sequence

from prefect.events import emit_event

from qnnsweep.flows.runs.regressions import cell_in_words, what_is_worse, with_unit
from qnnsweep.flows.runs.results import SweepResult, report_name
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.storage.store import Store

REGRESSED, ENDED = "qnnsweep.regressed", "qnnsweep.ended"
_NAMES = CELL_COLUMNS[1:]
_NUMBERS = ("series", "operator", "step", "value", "level", "unit", "verdict", "first_bad_run", "changed")


def emit_regressions(result: SweepResult, store: Store) -> None:
    """Emit the events of a run's regressed cells. Prefect relates them to the flow run in which this is called."""
    report = store.link(report_name(result.run.run_id))
    for rows in result.counts.regressed.values():
        names = {name: str(rows[0][name]) for name in _NAMES if rows[0][name] is not None}
        resource = {
            "prefect.resource.id": f"qnnsweep.cell.{'.'.join(names.values())}",
            "prefect.resource.name": cell_in_words(rows[0]),
            **{f"qnnsweep.{name}": value for name, value in names.items()},
        }
        new = [row for row in rows if row["verdict"] == "regressed"]
        payload = {
            "run": result.run.run_id,
            "cell": resource["prefect.resource.name"],
            "since": min(row["first_bad_run"] for row in new),
            "changed": list(dict.fromkeys(change for row in new for change in row["changed"] or ())),
            "worse": "; ".join(map(_in_words, new)),
            "series": [{name: row[name] for name in _NUMBERS} for row in rows],
            "report": report,
        }
        emit_event(event=REGRESSED, resource=resource, payload=payload)


def emit_end(result: SweepResult, state: str, tags: Sequence[str]) -> None:
    """Emit the event of a run that has ended. `state`: Completed or Failed. `tags`: all tags of its flow run."""
    run = result.run.run_id
    resource = {"prefect.resource.id": f"qnnsweep.run.{run}", "prefect.resource.name": run, "qnnsweep.state": state}
    related = [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in tags]
    payload = {"run": run, "summary": ", ".join(result.counts.in_words()), "report": result.run.report}
    emit_event(event=ENDED, resource=resource, related=related, payload=payload)


def _in_words(row: Row) -> str:
    now, before = (with_unit(row[name], row["unit"]) for name in ("value", "level"))
    return f"{what_is_worse(row)} {now}, was {before}"

"""The names of runs that commands accept: an id, the beginning of an id, `latest` or `previous`."""

from tasks.errors import RequestError
from tasks.storage import tables
from tasks.storage.store import Store


def resolve(store: Store, name: str | None) -> str:
    """Return the id of the run that `name` means. None means the latest run. Raises RequestError."""
    known = tables.runs(store)
    if name in known:
        return name
    special = {None: known[-1:], "latest": known[-1:], "previous": known[-2:-1]}
    matches = special[name] if name in special else [run for run in known if name and run.startswith(name)]
    if not matches:
        wanted = "no run" if name is None else f"no run {name!r}"
        raise RequestError(f"{wanted} in {store.location}; there are: {', '.join(known) or 'none'}")
    if len(matches) > 1:
        raise RequestError(f"{name!r} matches several runs in {store.location}: {', '.join(matches)}; name one of them")
    return matches[0]

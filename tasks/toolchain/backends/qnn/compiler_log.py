"""A reader of the HTP compiler's output: its errors, and the memory traffic of each compiled subgraph."""

import re

from qnnsweep.tasks.records import CompileFacts

_ERROR = re.compile(r"^[ \t]*\[ERROR\] \[Qnn ExecuTorch\]:[ \t]*(?:<E>[ \t]*)?(.*)", re.MULTILINE)
_PLACE = re.compile(r"^\w+\.cc:\d+:+(?:ERROR:)?\s*")
_COLUMNS = ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")
_FACT = re.compile(rf"^({'|'.join(_COLUMNS)})\s*=\s*(\d+)\s*$", re.MULTILINE)


def every_error(log: str) -> list[str]:
    """Return the compiler's error messages in the order of the log, without times, logger names and source lines."""
    messages = (_PLACE.sub("", message.strip()) for message in _ERROR.findall(log))
    return [message for message in messages if message]


def errors(log: str) -> list[str]:
    """Return the compiler's error messages without duplicates; see `every_error`."""
    return list(dict.fromkeys(every_error(log)))


def compile_facts(log: str) -> tuple[CompileFacts, ...]:
    """Return one DDR summary per delegated subgraph, in compilation order; () if any summary is incomplete."""
    facts = _FACT.findall(log)
    columns = [[int(value) for name, value in facts if name == column] for column in _COLUMNS]
    if len({len(values) for values in columns}) > 1:
        return ()
    return tuple(
        CompileFacts(subgraph=index, spill_bytes=spill, fill_bytes=fill, write_total_bytes=write, read_total_bytes=read)
        for index, (spill, fill, write, read) in enumerate(zip(*columns, strict=True))
    )

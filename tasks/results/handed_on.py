"""Rows that people hand on: they say nothing about the machine on which they were made."""

from dataclasses import replace
from pathlib import PurePath

from qnnsweep.tasks.records import Command
from qnnsweep.tasks.records.tables import Row, by_columns
from qnnsweep.tasks.storage.environment import without_home


def row_of(record: object) -> Row:
    """Return the row of a record, without the user's home folder."""
    return without_home(by_columns(record))


def without_folder(command: Command) -> Command:
    """Return the command with the name of its program in place of the path."""
    program, *arguments = command.argv
    return replace(command, argv=(PurePath(program).name, *arguments))

"""The command `qnnsweep inspect`: what a program contains that anyone has made."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qnnsweep.conf.units import KIB
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.report.format import decimal, plain_table, plural
from qnnsweep.tasks.toolchain.captured_files import CapturedFiles

if TYPE_CHECKING:
    from qnnsweep.flows.inspection import ComparedOperators
    from qnnsweep.tasks.records import InspectedProgram, InspectedTensor

EXITS = "Exit codes: 0 read · 2 there is no such file, or it is no readable program."
_MOST_ROWS = 20

ProgramFile = Annotated[Path, typer.Argument(metavar="PROGRAM", help="A program: a .pte file that anyone has made.")]


def inspect(
    words: Words,
    program: ProgramFile,
    etrecord: Annotated[
        Path | None,
        typer.Option("--etrecord", help="The ETRecord; or the .pt2 file of torch.export, for the outputs alone."),
    ] = None,
    etdump: Annotated[Path | None, typer.Option("--etdump", help="The ETDump of its execution.")] = None,
    debug_buffer: Annotated[Path | None, typer.Option("--debug-buffer", help="The debug buffer of the ETDump.")] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="The inputs: .pt, .npy, .npz or .safetensors. By default those in the ETRecord."),
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="The method that was executed, of several.")] = None,
) -> Output:
    """Show what a program contains: methods, delegates, options, encodings, constants and operators.

    The program is read, and not executed. With its ETRecord, an ETDump and a debug buffer, every operator is compared
    as in a run. With `--json`, nothing is left out.
    """
    del words
    contents = read_program(program, "PROGRAM")
    files = {"--etrecord": etrecord, "--etdump": etdump, "--debug-buffer": debug_buffer}
    given = {key: file for key, file in files.items() if file is not None}
    for key, file in {**given, **({"--inputs": inputs} if inputs else {})}.items():
        if not file.is_file():
            raise RequestError(f"{key}={file}: no such file")
    if 0 < len(given) < len(files) or ((inputs or method) and not given):
        here = f"only {', '.join(given)}" if given else "none of them"
        raise RequestError(f"operators are compared with all of {', '.join(files)}; here is {here}")
    compared = None
    if etrecord and etdump and debug_buffer:
        captured = CapturedFiles(
            program=program.absolute(),
            etrecord=etrecord.absolute(),
            etdump=etdump.absolute(),
            buffer=debug_buffer.absolute(),
            inputs=inputs and inputs.absolute(),
            method=method,
        )
        compared = _compared(captured)
    return Output(
        contents={"file": str(program), **asdict(contents), **(asdict(compared) if compared else {})},
        parts=[*_parts(program, contents), *(_comparison(compared) if compared else ())],
    )


def _compared(files: CapturedFiles) -> "ComparedOperators":
    from qnnsweep.flows.inspection import compared_operators

    try:
        return compared_operators(files)
    except EvidenceError as error:
        raise RequestError(f"{error}; give the files of one execution of {files.program}") from error


def _comparison(compared: "ComparedOperators") -> Iterator[RenderableType]:
    columns = ("operator", "module", "where", "status", "verdict", "SNR dB", "introduced dB", "Inspector's SNR dB")
    table = plain_table(*columns, right=columns[-3:])
    for row in compared.compared_operators:
        where = "CPU" if row["subgraph"] is None else f"subgraph {row['subgraph']}"
        numbers = [decimal(row[name]) for name in ("snr_db", "introduced_snr_db")]
        inspector = "no row" if row["inspector"] else decimal(row["inspector_snr_db"])
        names = row["operator"], row["module_path"], where, row["status"], row["verdict"]
        table.add_row(*map(Text, names), *numbers, inspector)
    if compared.compared_operators:
        yield table
    for row in compared.outputs:
        if row["rung"] == "device":
            snr_db = decimal(row["gap"]["snr_db"])
            yield f"{row['output']}, inference {row['sample']}: {snr_db} dB against the {compared.outputs_reference}"
    if compared.inspector_failed:
        missing = "ExecuTorch's Inspector gives no rows" if compared.compared_operators else "No operator is compared"
        yield f"{missing}: {compared.inspector_failed}"


def read_program(file: Path, key: str) -> "InspectedProgram":
    """Return the contents of a program. Raises RequestError if it cannot be read."""
    from qnnsweep.tasks.toolchain.readback.inspection import inspect_program

    try:
        return inspect_program(file.read_bytes())
    except OSError as error:
        raise RequestError(f"{key}={file}: {error.strerror}; name a .pte file") from error
    except EvidenceError as error:
        raise RequestError(f"{key}={file}: {error}; export the program again, or copy it again") from error


def _parts(file: Path, program: "InspectedProgram") -> Iterator[RenderableType]:
    yield f"{file}: {program.bytes / KIB:,.0f} KiB, {plural(len(program.methods), 'method')}"
    yield _methods(program)
    if constant := [f"{row.method} {row.returns}" for row in program.methods if row.returns is not None]:
        yield f"methods that return constants: {', '.join(constant)}"
    if program.delegates:
        yield _delegates(program)
    if program.options:
        yield _options(program)
    yield from _tensors(program)
    yield _operators(program)
    if program.named_data:
        size = sum(row.bytes for row in program.named_data)
        yield f"named data: {plural(len(program.named_data), 'key')}, {size / KIB:,.1f} KiB"


def _methods(program: "InspectedProgram") -> Table:
    table = plain_table("method", "inputs", "outputs", "kernels on the CPU", "delegates", "planned KiB", right=_NUMBERS)
    for row in program.methods:
        if row.returns is None:
            inputs, outputs = (
                ", ".join(_form(tensor) for tensor in program.tensors if _is_end(tensor, row.method, role))
                for role in ("input", "output")
            )
            table.add_row(
                Text(row.method), inputs, outputs, str(row.kernels), str(row.delegates), f"{row.buffer_bytes / KIB:.1f}"
            )
    return table


def _delegates(program: "InspectedProgram") -> Table:
    table = plain_table("delegate", "backend", "nodes", "KiB", "calls", "note", right=_NUMBERS)
    for row in program.delegates:
        shared = f"the bytes of a delegate of {row.shared_with}" if row.shared_with else ""
        nodes = "" if row.nodes is None else str(row.nodes)
        cells = nodes, f"{row.bytes / KIB:.1f}", str(row.calls), Text(row.unread or shared)
        table.add_row(Text(f"{row.method} {row.subgraph}"), Text(row.backend), *cells)
    return table


def _options(program: "InspectedProgram") -> Table:
    """Return the options. Equal ones of several delegates are one line."""
    where: dict[tuple[str, str | None, str | None], list[str]] = {}
    for row in program.options:
        where.setdefault((row.option, row.asked, row.got), []).append(f"{row.method} {row.subgraph}")
    options = Counter(option for option, _, _ in where)
    table = plain_table("option", "asked", "got", "delegates")
    for (option, asked, got), places in sorted(where.items(), key=lambda item: item[0][2] is None):
        places = "" if options[option] == 1 else ", ".join(places)
        table.add_row(Text(option), Text(asked or ""), Text(got or ""), Text(places))
    return table


def _tensors(program: "InspectedProgram") -> Iterator[RenderableType]:
    """Yield the encodings and the constants: the first encodings, and the largest constants."""
    encoded = [tensor for tensor in program.tensors if tensor.scale is not None]
    if encoded:
        table = plain_table("encoded tensor", "", "type", "shape", "scale", "zero point")
        for tensor in encoded[:_MOST_ROWS]:
            scale, zero_point = (_shortened(values) for values in (tensor.scale, tensor.zero_point))
            table.add_row(*_named(tensor), scale, zero_point)
        yield from (table, *_left_out(len(encoded), "encoded tensor"))
    constants = [tensor for tensor in program.tensors if tensor.role == "constant"]
    if constants:
        table = plain_table("constant", "", "type", "shape", "KiB", "sha256", right=_NUMBERS)
        for tensor in sorted(constants, key=lambda tensor: tensor.bytes or 0, reverse=True)[:_MOST_ROWS]:
            size = "elsewhere" if tensor.bytes is None else f"{tensor.bytes / KIB:.1f}"
            table.add_row(*_named(tensor), size, (tensor.sha256 or "")[:12])
        yield from (table, *_left_out(len(constants), "constant"))


def _operators(program: "InspectedProgram") -> Table:
    counts = Counter((row.method, row.subgraph, row.operator) for row in program.operators)
    table = plain_table("where", "operator", "count", right=_NUMBERS)
    for (method, subgraph, operator), count in counts.items():
        where = method if subgraph is None else f"{method} {subgraph}"
        table.add_row(Text(where), Text(operator), str(count))
    return table


_NUMBERS = ("kernels on the CPU", "delegates", "planned KiB", "nodes", "KiB", "calls", "count")


def _is_end(tensor: "InspectedTensor", method: str, role: str) -> bool:
    return (tensor.method, tensor.role, tensor.subgraph) == (method, role, None)


def _named(tensor: "InspectedTensor") -> list[RenderableType]:
    where = tensor.method if tensor.subgraph is None else f"{tensor.method} {tensor.subgraph}"
    return [Text(tensor.name), Text(where), tensor.dtype, "×".join(map(str, tensor.shape)) or "scalar"]


def _form(tensor: "InspectedTensor") -> str:
    return f"{tensor.dtype} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


def _shortened(values: Sequence[Any] | None) -> str:
    listed = values or ()
    more = f" … ({len(listed)})" if len(listed) > 1 else ""
    return f"{listed[0]:.6g}{more}" if listed else ""


def _left_out(rows: int, noun: str) -> list[str]:
    more = rows - _MOST_ROWS
    return [f"{plural(more, f'more {noun}')}: see --json"] if more > 0 else []

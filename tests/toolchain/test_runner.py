"""The runner as a program: `qnn_executor_runner`'s command line, files and words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.devices.runner_cli import latencies_ms, output_file, runner_arguments
from qnnsweep.tasks.records import Blob, Launch, LaunchedMethod, LoweredProgram
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import StartRunner

FLAGS = {
    "--model_path",
    "--input_list_path",
    "--output_folder_path",
    "--iteration",
    "--warm_up",
    "--etdump_path",
    "--dump_intermediate_outputs",
    "--debug_output_path",
    "--debug_buffer_size",
    "--performance_output_path",
    "--method_index",
    "--log_level",
    "--htp_performance_mode",
    "--profile_level",
    "--shared_buffer",
}


@pytest.fixture(scope="session")
def program(resources: Resources, lowered: LoweredProgram) -> bytes:
    return resources.store.read(lowered.program)


def run_plain(*flags: str, folder: Path | None = None) -> tuple[int, str, str]:
    """Exit code and words of the runner, started where there is nothing."""
    argv = [sys.executable, "-P", runner.__file__, *flags]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def lines_of(text: str) -> list[str]:
    """The runner's own lines."""
    return [line for line in text.splitlines() if "qnnsweep_runner.py] " in line]


def inferences(folder: Path) -> int:
    events = read_etdump((folder / "etdump.etdp").read_bytes()).events
    return sum(event.name == "Method::execute" for event in events)


def test_the_flags_are_those_of_executorchs_runner_and_one_for_models_with_states() -> None:
    code, out, err = run_plain("--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"--\w+", out)) - {"--help"} == FLAGS | {"--plan_path"}


def test_help_needs_no_toolchain_and_takes_no_time() -> None:
    argv = [sys.executable, "-P", "-X", "importtime", runner.__file__, "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    "flags", [["--no_such_flag=1"], ["--iter=2"], ["--iteration=two"], ["--shared_buffer=maybe"], ["stray"]]
)
def test_a_wrong_command_line_is_told_apart_from_a_failed_program(flags: list[str]) -> None:
    code, out, err = run_plain(*flags)
    assert (code, out) == (2, "")
    assert "error: " in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        (["--dump_intermediate_outputs"], True),
        (["--dump_intermediate_outputs=true"], True),
        (["--dump_intermediate_outputs=T"], True),
        (["--dump_intermediate_outputs=1"], True),
        (["--dump_intermediate_outputs=false"], False),
        (["--dump_intermediate_outputs=0"], False),
        ([], False),
    ],
)
def test_booleans_are_given_as_gflags_has_them(word: list[str], meant: bool) -> None:
    assert runner.parse(word).dump_intermediate_outputs is meant


def test_it_understands_what_the_execute_stage_says() -> None:
    launch = Launch(
        name="debug",
        program=Blob(sha256="p", size=1),
        input_list=Blob(sha256="list", size=1),
        samples=1,
        debug=True,
        debug_buffer_bytes=4096,
        events=5,
        iterations=3,
        warm_up=2,
        performance_mode=2,
        methods=(LaunchedMethod(name=None, index=0, outputs=()),),
    )
    parsed = runner.parse(runner_arguments(launch))
    assert (parsed.model_path, parsed.input_list_path) == ("../../../blobs/p", "../../../blobs/list")
    assert parsed.output_folder_path == "outputs"
    assert (parsed.iteration, parsed.warm_up, parsed.debug_buffer_size) == (3, 2, 4096)
    assert parsed.htp_performance_mode == 2
    assert (parsed.dump_intermediate_outputs, parsed.debug_output_path) == (True, "debug_output.bin")
    assert parsed.etdump_path == "etdump.etdp"


@pytest.mark.toolchain
def test_it_leaves_outputs_times_and_an_etdump_under_the_names_the_stages_know(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = start_runner(folder, program, images)
    assert (done.exit_code, lines_of(done.stderr)) == (0, [])
    assert sorted(f"outputs/{name}" for name in done.outputs) == sorted(output_file(sample, 0) for sample in range(8))
    assert {len(data) for data in done.outputs.values()} == {10 * 4}
    times = latencies_ms(done.stdout)
    assert len(times) == 8
    assert min(times) > 0
    means = (sum(times) / 8 + rounding for rounding in (-5e-7, 0.0, 5e-7))  # of times, which are printed to 1e-6 ms
    assert (folder / "inference_speed.txt").read_text() in {f"{mean:g}" for mean in means}
    lines = lines_of(done.stdout)
    assert lines[0].endswith("] Model file model.pte is loaded.")
    assert all(re.search(r"\] 1 inference took [\d.]+ ms, avg [\d.]+ ms$", line) for line in lines[1:9])
    assert re.search(r"\] Total 8 inference took [\d.]+ ms, avg [\d.]+ ms$", lines[9])
    assert inferences(folder) == 8
    assert not (folder / "debug_output.bin").exists()


@pytest.mark.toolchain
def test_warm_up_and_iterations_are_run_and_only_the_latter_are_timed(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    once = start_runner(tmp_path / "once", program, images[:2])
    often = start_runner(tmp_path / "often", program, images[:2], "--iteration=3", "--warm_up=2")
    assert (inferences(tmp_path / "once"), inferences(tmp_path / "often")) == (2, 2 * (3 + 2))
    assert often.outputs == once.outputs
    assert [line.split("] ")[1].split(" took")[0] for line in lines_of(often.stdout)[1:3]] == ["3 inference"] * 2
    timed = [tuple(map(float, re.findall(r"([\d.]+) ms", line))) for line in lines_of(often.stdout)[1:3]]
    assert [mean for _, mean in timed] == [pytest.approx(total / 3, abs=1e-6) for total, _ in timed]


@pytest.mark.toolchain
def test_an_input_of_the_wrong_size_ends_it_with_one_clear_line(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    done = start_runner(tmp_path / "run", program, [*images[:1], (images[1][0][:-4],)])
    assert done.exit_code == 1
    assert lines_of(done.stderr) == [
        "E executorch:qnnsweep_runner.py] Input input_1_0.raw size mismatch. file bytes: 252, tensor bytes: 256"
    ]


@pytest.mark.toolchain
def test_too_many_inputs_end_it_with_one_clear_line(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    done = start_runner(tmp_path / "run", program, [(images[0][0], images[1][0])])
    assert (done.exit_code, done.outputs) == (1, {})
    assert lines_of(done.stderr) == [
        "E executorch:qnnsweep_runner.py] Number of inputs (1) mismatch with input files (2)"
    ]


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--model_path=no/such.pte", "no program at no/such.pte"),
        ("--input_list_path=no/such.txt", "no input list at no/such.txt"),
        ("--output_folder_path=no/such", "no output folder at no/such"),
    ],
)
def test_a_missing_file_ends_it_with_one_clear_line(
    flag: str, line: str, start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    done = start_runner(tmp_path / "run", program, images[:1], flag)
    assert (done.exit_code, done.outputs) == (1, {})
    assert done.stderr == f"E executorch:qnnsweep_runner.py] {line}\n"


@pytest.mark.toolchain
def test_a_missing_input_ends_it_with_one_clear_line(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("absent.raw\n")
    done = start_runner(tmp_path / "run", program, images[:1], f"--input_list_path={listed}")
    assert (done.exit_code, done.outputs) == (1, {})
    assert lines_of(done.stderr) == ["E executorch:qnnsweep_runner.py] no input at absent.raw"]


@pytest.mark.toolchain
def test_bytes_that_are_no_program_are_the_runtimes_to_refuse(
    start_runner: StartRunner, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    done = start_runner(tmp_path / "run", b"not a program" * 100, images[:1])
    assert (done.exit_code, done.outputs) == (1, {})
    assert "Program identifier 'a pr' != expected 'ET12'" in done.stderr


@pytest.mark.toolchain
def test_empty_lines_of_the_list_are_no_inferences(
    start_runner: StartRunner, program: bytes, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("\ninput_0_0.raw\n\n  \ninput_1_0.raw\n\n")
    done = start_runner(tmp_path / "run", program, images[:2], f"--input_list_path={listed}")
    assert (done.exit_code, sorted(done.outputs)) == (0, ["output_0_0.raw", "output_1_0.raw"])

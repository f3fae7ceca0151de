"""The delegates of a program on a hosted device: Qualcomm AI Hub executes their context binaries in jobs.

The runner is on the host for such a device, in a Python with the packages qai-hub and flatbuffers. Only the client of
AI Hub reads the user's token, from its own configuration file; no output has it. Context binaries and inputs that AI
Hub has already are not sent again; the file `_UPLOADS` in the device's work folder has their names there. A job has the
inputs of all inferences of a launch if they are known before the first one.
"""

import argparse
import errno
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from qnnsweep.tasks.records import hosted
from qnnsweep.tasks.toolchain import runner

_UPLOADS = "aihub.json"
_DTYPES = ("float16", "float32", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16")
"""NumPy's names of the types that a dataset of AI Hub can have."""
_FINAL = (
    "RUNTIME_CRASH", "RUNTIME_TIMEOUT", "RUNTIME_DEVICE_OOM", "MODEL_UNKNOWN", "MODEL_INVALID", "QNN_TOOL_ERROR",
    "UNSUPPORTED", "INVALID_ARGUMENT", "QNN_VERSION_MISMATCH", "DSP_VERSION_MISMATCH",
)  # fmt: skip
"""The failures that a further job would repeat."""
_ATTEMPTS = 2
_AGAIN_AFTER_S = 5.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.5, 10.0
_LONGEST_REASON = 2000
_NOT_FOUND, _SERVER_ERROR = 404, 500
_SHORTAGES = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_SECRETS: set[str] = set()
"""The words of the token, which are in no output."""
_SHORTEST_SECRET = 4


class LostError(Exception):
    """AI Hub does not know a job any more, or does not have all of its results."""


class Hub:
    """The delegates of one program on one hosted device."""

    is_here = False

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._blobs = Path(arguments.model_path).parent
        self._uploads = self._blobs.parent / _UPLOADS
        self._settings = json.loads(os.environ[hosted.SETTINGS])
        self._ends = time.monotonic() + self._settings["wait_s"]
        self._is_timed = not arguments.dump_intermediate_outputs
        self._taken_ms: list[float | None] = []
        self._sent: set[str] = set()
        tempfile.tempdir = str(Path.cwd())  # the client's files go with the folder of the launch
        with _one_reason(hosted.NO_CLIENT, quotes_all=True):
            self._hub, self._rest, self._records = (
                importlib.import_module(f"qai_hub{name}") for name in ("", ".public_rest_api", ".public_api_pb2")
            )
        with _one_reason(hosted.NO_CONFIGURATION):
            self._client = self._hub.Client()
            self._client.set_verbose(False)
            self._where = self._client.config.api_url
            _SECRETS.update(word for word in self._client.config.api_token.split() if len(word) >= _SHORTEST_SECRET)

    def prepare(self, call: Any) -> None:
        """Nothing has to be prepared before the first inference: a job loads its program."""

    def expect(self, call: Any, samples: Iterable[dict[str, Any]]) -> None:
        """Execute a delegate with the inputs of several inferences in one job, unless their results are known."""
        missing = {key: fed for fed in samples if not _file(key := _key(call, fed)).is_file()}
        if missing:
            self._execute(call, missing)

    def begin(self) -> None:
        """Note that an inference begins."""
        self._taken_ms = []

    def run(self, call: Any, fed: dict[str, Any]) -> list[Any]:
        """Return the outputs of a delegate in their order. Each runs in a job, which can have ended before."""
        import numpy as np

        self.expect(call, [fed])
        with np.load(_file(_key(call, fed)), allow_pickle=False) as kept:
            milliseconds = kept["milliseconds"]
            self._taken_ms.append(float(milliseconds[0]) if milliseconds.size else None)
            return [kept[f"output {index}"] for index in range(len(call["outputs"]))]

    def mean_ms(self, _measured_ms: float, /) -> float | None:
        """Return the time of an inference, which AI Hub measures for a program that ships; None if it did not."""
        taken = [milliseconds for milliseconds in self._taken_ms if milliseconds is not None]
        return sum(taken) if len(taken) == len(self._taken_ms) > 0 else None

    def _execute(self, call: Any, samples: dict[str, dict[str, Any]]) -> None:
        """Run a job, and write the results of each inference to the file of its key. Exit with 1 if there are none."""
        import numpy as np

        for side in call["inputs"]:
            if side["dtype"] not in _DTYPES:
                sys.exit(runner.fail(f"AI Hub takes no {side['dtype']}, which the input {side['name']} is"))
        entries = {side["name"]: [fed[side["name"]] for fed in samples.values()] for side in call["inputs"]}
        with _one_reason(hosted.NO_ANSWER):
            found, milliseconds = self._results(call, entries)
        outputs = [_checked(side, found) for side in call["outputs"]]
        for index, key in enumerate(samples):
            kept = {f"output {position}": arrays[index] for position, arrays in enumerate(outputs)}
            times = np.array([] if milliseconds is None else [milliseconds])
            written = _file(key).with_suffix(".part")
            with written.open("wb") as file:
                np.savez(file, milliseconds=times, **kept)
            written.replace(_file(key))

    def _results(self, call: Any, entries: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], float | None]:
        """Return the outputs of a job by their names, and its mean time of an inference in ms if it was measured."""
        samples = len(next(iter(entries.values()), ()))
        for attempt in range(_ATTEMPTS):
            job = self._submitted(call, entries)
            runner.say(f"{hosted.JOB} {job.url}")
            try:
                failure = self._failure_of(job)
                if failure is None:
                    found = self._downloaded(job)
                    if all(len(arrays) == samples for arrays in found.values()):
                        return found, self._mean_ms(job)
                    raise LostError
                name, reason = failure
            except LostError:
                name, reason = None, ""
            if name in _FINAL or attempt == _ATTEMPTS - 1:
                lost = f"{hosted.NO_ANSWER}: it has lost {job.url}"
                _end(lost if name is None else f"{hosted.JOB_FAILED} {name}: {job.url}: {reason or 'no reason'}")
            runner.say(f"The job {'is lost' if name is None else f'failed with {name}'}; a further one is asked for.")
            self._forget()
            time.sleep(_AGAIN_AFTER_S)
        raise AssertionError("the last attempt has ended")

    def _submitted(self, call: Any, entries: dict[str, list[Any]]) -> Any:
        options = self._settings["options"]
        if call["graphs"] > 1:
            options = f"{options} --qnn_options context_enable_graphs={call['graph']}"
        return self._client.submit_inference_job(
            model=self._model(call["context"]),
            device=self._hub.Device(self._settings["device"], self._settings["os"]),
            inputs=self._dataset(entries),
            name=f"qnnsweep {call['context'][:12]}",
            options=options.strip(),
            profile=self._is_timed,
        )

    def _model(self, context: str) -> Any:
        """Return AI Hub's model of a context binary. It is sent if AI Hub does not have it."""

        def sent() -> Any:
            binary = Path(f"{context}.bin")  # the client recognises a context binary by the end of its name
            if not binary.exists():
                binary.symlink_to(self._blobs.absolute() / context)
            return self._client.upload_model(str(binary), name=f"qnnsweep {context[:12]}")

        return self._uploaded(context, self._client.get_model, sent, lambda model: model.model_id)

    def _dataset(self, entries: dict[str, list[Any]]) -> Any:
        """Return AI Hub's dataset of inputs. It is sent if AI Hub does not have it any more."""

        def kept(identity: str) -> Any:
            dataset = self._client.get_dataset(identity)
            if dataset.is_expired():
                raise self._hub.client.UserError("the dataset is expired")
            return dataset

        digest = _digest(array for name in entries for array in (name, *entries[name]))
        return self._uploaded(
            digest, kept, lambda: self._client.upload_dataset(entries), lambda dataset: dataset.dataset_id
        )

    def _uploaded(
        self, digest: str, kept: Callable[[str], Any], sent: Callable[[], Any], identity: Callable[[Any], str]
    ) -> Any:
        """Return what AI Hub has of these contents; send them if it has nothing, or has forgotten it."""
        key = f"{self._where} {digest}"
        self._sent.add(key)
        known = self._known().get(key)
        if known is not None:
            try:
                return kept(known)
            except self._hub.client.UserError:
                pass  # deleted or expired
        uploaded = sent()
        self._write(self._known() | {key: identity(uploaded)})
        return uploaded

    def _known(self) -> dict[str, str]:
        """Return AI Hub's names of what was sent, by service and digest. A file that cannot be read knows nothing."""
        try:
            read = json.loads(self._uploads.read_text())
        except (OSError, ValueError):
            return {}
        return {key: value for key, value in read.items() if isinstance(value, str)} if isinstance(read, dict) else {}

    def _forget(self) -> None:
        """Forget what this process has used, so that it is sent again: AI Hub may have lost it."""
        self._write({key: value for key, value in self._known().items() if key not in self._sent})

    def _write(self, known: dict[str, str]) -> None:
        written = self._uploads.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(known, indent=1))
        written.replace(self._uploads)

    def _failure_of(self, job: Any) -> tuple[str, str] | None:
        """Wait for the end of a job. Return the type of its failure and its reason; None if it succeeded.

        Raises LostError if AI Hub does not know the job.
        """
        states, pause_s = self._records.JobState, _FIRST_POLL_S
        while True:
            read = self._read(job)
            if read is not None and read.inference_job.job_state == states.JOB_STATE_DONE:
                return None
            if read is not None and read.inference_job.job_state == states.JOB_STATE_FAILED:
                return self._type_of(read.failure_type), read.inference_job.failure_reason
            if time.monotonic() + pause_s > self._ends:
                _end(f"{hosted.NO_END} {job.url} after {self._settings['wait_s']:g} s; raise device.deadline_s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _read(self, job: Any) -> Any:
        """Return what AI Hub knows of a job; None if it does not answer now: the job goes on. Raises LostError."""
        try:
            return self._rest.get_job(self._client.config, job.job_id)
        except self._rest.APIException as error:
            if error.status_code == _NOT_FOUND:
                raise LostError from error
            if error.status_code is None or error.status_code < _SERVER_ERROR:
                raise
        except OSError as error:  # those of the connection are of this class
            if _is_shortage(error):
                raise
        return None

    def _type_of(self, number: int) -> str:
        """Return the name of a failure's type, or the number of a type that this client does not know."""
        try:
            return self._records.JobFailureType.Name(number).removeprefix(hosted.TYPE_PREFIX)
        except ValueError:
            return str(number)

    def _downloaded(self, job: Any) -> dict[str, list[Any]]:
        try:
            found = job.download_output_data()
        except self._hub.client.UserError as error:
            raise LostError from error
        if found is None:
            raise LostError
        return found

    def _mean_ms(self, job: Any) -> float | None:
        """Return the mean of the times that AI Hub measured, or its estimate if it lists none; None without either.

        The unit of the client is microseconds. AI Hub chooses how often the program runs.
        """
        if not self._is_timed:
            return None
        try:
            summary = job.download_profile().get("execution_summary", {})
        except self._hub.client.Error:
            return None  # the results are there
        times = summary.get("all_inference_times") or [summary.get("estimated_inference_time") or 0]
        return sum(times) / len(times) / 1000.0 if sum(times) else None


def _checked(side: Any, found: dict[str, list[Any]]) -> list[Any]:
    """Return the arrays of an output. Exit with 1 if they are not what the program computes."""
    arrays = found.get(side["name"])
    if arrays is None:
        _end(f"{hosted.WRONG_ANSWER}: no output {side['name']}, but {', '.join(sorted(found)) or 'nothing'}")
    expected = (side["dtype"], tuple(side["shape"]))
    shapes = {(str(array.dtype), tuple(array.shape)) for array in arrays}
    if shapes != {expected}:
        _end(f"{hosted.WRONG_ANSWER}: {side['name']} is {sorted(shapes)}, not {expected}")
    return arrays


@contextmanager
def _one_reason(meaning: str, *, quotes_all: bool = False) -> Iterator[None]:
    """Exit with 1 and one line if AI Hub cannot be used: whatever the client raises is no property of the program.

    A shortage of this machine is passed on. `quotes_all`: whether the text of every error is shown. Those of the
    libraries that the client uses can quote its configuration with the token, or a proxy's URL with a password.
    """
    try:
        yield
    except Exception as error:
        if _is_shortage(error):
            raise
        is_safe = quotes_all or type(error).__module__.partition(".")[0] in ("qai_hub", "builtins")
        text = str(error) if is_safe else "its text is left out"
        meanings = {"authenticat": hosted.REFUSED_TOKEN, "configuration file": hosted.NO_CONFIGURATION}
        means = next((means for words, means in meanings.items() if words in text.lower()), meaning)
        _end(f"{means}: {type(error).__name__}: {text}")


def _is_shortage(error: Exception) -> bool:
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORTAGES


def _end(problem: str) -> NoReturn:
    sys.exit(runner.fail(f"{hosted.PROBLEM} {_line(problem)}"))


def _line(text: str) -> str:
    """Return a text as one line without the token. What the service says cannot begin a line of the runner's own."""
    for secret in _SECRETS:
        text = text.replace(secret, "…")
    return " ".join(re.sub("[\u2500-\u257f|]", " ", text).split())[:_LONGEST_REASON]  # the client draws boxes


def _key(call: Any, fed: dict[str, Any]) -> str:
    """Return what the results of a delegate depend on: its context binary, its graph and its inputs."""
    return _digest((call["context"], call["graph"], *(part for name in fed for part in (name, fed[name]))))


def _digest(parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part.tobytes()
        found.update(f"{'' if isinstance(part, str) else (part.dtype, part.shape)} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()


def _file(key: str) -> Path:
    """Return the file of the results with a key, in the folder of the launch."""
    return Path(f"aihub_{key}.npz")

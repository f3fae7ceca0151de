"""A server on this machine that speaks the protocol of Qualcomm AI Hub's client, and executes context binaries.

The messages are the client's own. ONNX Runtime executes the binaries, with the HTP simulator. Faults can be planned.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, request
from werkzeug.serving import make_server

ROOT = Path(__file__).parents[2]
PYTHON = str(ROOT / ".venv" / "aihub" / "bin" / "python")
"""The Python with qai-hub, which `make .venv/installed-dev` makes."""
TOKEN = "a-secret-token"
DEVICES = {"Samsung Galaxy S24 (Family)": "14", "Samsung Galaxy S25 (Family)": "15"}
MEAN_US = 1250
"""What the server says that an inference takes."""
_PROTOBUF = "application/x-protobuf"


@cache
def client_packages() -> Path:
    (found,) = Path(PYTHON).parents[1].glob("lib/python*/site-packages")
    return found


@cache
def messages() -> Any:
    """The classes of the client's messages."""
    spec = importlib.util.spec_from_file_location("aihub_messages", client_packages() / "qai_hub/public_api_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class LocalHub:
    """The server: what it has, what it was asked for, and the faults that are still to come."""

    folder: Path
    failures: list[str | int] = field(default_factory=list[str | int])
    """How the next jobs fail: the names of types without their prefix, or numbers."""
    reason: str = "it was planned"
    refused: int = 0
    """How many of the next jobs are refused because there are too many."""
    lost: int = 0
    """How many of the next jobs the server forgets."""
    endless: bool = False
    damage: str = ""
    """What happens to the first output of a job: `renamed`, `other type`, `too few` or `code`."""
    asked: Counter[str] = field(default_factory=Counter[str])
    """How often each kind of request was made."""
    options: list[str] = field(default_factory=list[str])
    models: dict[str, bytes] = field(default_factory=dict[str, bytes])
    datasets: dict[str, bytes] = field(default_factory=dict[str, bytes])
    expires: dict[str, int] = field(default_factory=dict[str, int])
    jobs: dict[str, Any] = field(default_factory=dict[str, Any])
    url: str = ""

    def named(self, kind: str) -> str:
        self.asked[kind] += 1
        return f"{kind[0]}{self.asked[kind]}"

    def configure(self, token: str = TOKEN) -> Path:
        """Write the client's configuration file."""
        file = self.folder / "client.ini"
        file.write_text(f"[api]\napi_token = {token}\napi_url = {self.url}\nweb_url = {self.url}\nverbose = True\n")
        return file

    def execute(self, job: Any) -> str:
        """Execute a job. Return the name of the dataset with its outputs."""
        work = self.folder / job.inference_job_id
        work.mkdir()
        (work / "context.bin").write_bytes(self.models[job.model.model_id])
        (work / "inputs.h5").write_bytes(self.datasets[job.dataset.dataset_id])
        graph = job.options.partition("context_enable_graphs=")[2]
        program = [sys.executable, str(Path(__file__).with_name("execute.py")), str(client_packages()), graph]
        subprocess.run([*program, self.damage], cwd=work, check=True, timeout=120)
        name = self.named("outputs")
        self.datasets[name] = (work / "outputs.h5").read_bytes()
        return name


def _answer(message: Any) -> Response:
    return Response(message.SerializeToString(), content_type=_PROTOBUF)


def _parsed(kind: Any) -> Any:
    message = kind()
    message.ParseFromString(request.get_data())
    return message


def application(hub: LocalHub) -> Flask:
    """The routes of the service that `submit_inference_job` and what follows it use."""
    app, wire = Flask("aihub"), messages()
    made, state = wire.CreateUpdateResponse, wire.JobState

    @app.before_request
    def check() -> None:  # pyright: ignore[reportUnusedFunction]
        if request.path.startswith("/api/") and request.headers.get("Authorization") != f"token {TOKEN}":
            abort(401)

    @app.get("/api/v1/devices/")
    def devices() -> Response:  # pyright: ignore[reportUnusedFunction]
        found = [(name, os) for name, os in DEVICES.items() if name == request.args["name"]]
        attributes = ["framework:qnn", "chipset:qualcomm-snapdragon-8gen3"]
        listed = [wire.Device(name=name, os=os, attributes=attributes) for name, os in found]
        return _answer(wire.DeviceList(devices=listed))

    @app.post("/api/v1/models/")
    def new_model() -> Response:  # pyright: ignore[reportUnusedFunction]
        return _answer(made(id=hub.named("model")))

    @app.get("/api/v1/models/<name>/multipart_upload/")
    def places(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        size = int(request.args["file_size"])
        parts = wire.FileMultipartUploadURL(urls=[f"{hub.url}/put/{name}"], upload_id=name, max_part_size=size)
        return _answer(wire.FileUploadResponse(multipart_url=parts))

    @app.put("/put/<name>")
    def put(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        hub.models[name] = request.get_data()
        return Response("", headers={"ETag": name})

    @app.post("/api/v1/models/<name>/multipart_upload/")
    def complete(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _answer(made(id=name))

    @app.get("/api/v1/models/<name>/")
    def model(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        if name not in hub.models:
            abort(404)
        return _answer(wire.Model(model_id=name, name=name, model_type=wire.ModelType.MODEL_TYPE_QNN_CONTEXT_BINARY))

    @app.post("/api/v1/datasets/")
    def new_dataset() -> Response:  # pyright: ignore[reportUnusedFunction]
        name = hub.named("dataset")
        hub.expires[name] = int(time.time()) + 30 * 24 * 3600
        answer = made(id=name)
        answer.expiration_time.seconds = hub.expires[name]
        return _answer(answer)

    @app.get("/api/v1/datasets/<name>/upload_url/")
    def place(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _answer(
            wire.FileUploadResponse(url=wire.FileUploadURL(url=f"{hub.url}/post/{name}", file_field_name="file"))
        )

    @app.post("/post/<name>")
    def post(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        hub.datasets[name] = request.files["file"].read()
        return Response("")

    @app.patch("/api/v1/datasets/<name>/")
    def confirm(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _answer(made(id=name))

    @app.get("/api/v1/datasets/<name>/")
    def dataset(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        if name not in hub.datasets:
            abort(404)
        found = wire.Dataset(dataset_id=name, name=name)
        if name in hub.expires:
            found.expiration_time.seconds = hub.expires[name]
        return _answer(found)

    @app.get("/api/v1/datasets/<name>/download_data/")
    def download(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        url = wire.FileDownloadURL(url=f"{hub.url}/get/{name}", filename=f"{name}.h5")
        return _answer(wire.FileDownloadResponse(url=url))

    @app.get("/get/<name>")
    def get(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(hub.datasets[name], content_type="application/octet-stream")

    @app.post("/api/v1/jobs/")
    def new_job() -> Response:  # pyright: ignore[reportUnusedFunction]
        if hub.refused:
            hub.refused -= 1
            hub.asked["refused"] += 1
            return Response('{"detail": "too many jobs"}', 429)
        job = _parsed(wire.Job)
        name = hub.named("job")
        job.inference_job.inference_job_id = name
        hub.options.append(job.inference_job.options)
        hub.jobs[name] = job
        job.inference_job.job_state = state.JOB_STATE_CREATED
        if hub.failures:
            job.inference_job.job_state = state.JOB_STATE_FAILED
            job.inference_job.failure_reason = hub.reason
            kind = hub.failures.pop(0)
            number = kind if isinstance(kind, int) else wire.JobFailureType.Value(f"JOB_FAILURE_TYPE_{kind}")
            job.failure_type = number
        elif hub.lost:
            hub.lost -= 1
            del hub.jobs[name]
        return _answer(made(id=name))

    @app.get("/api/v1/jobs/<name>/")
    def job(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        if name not in hub.jobs:
            abort(404)
        asked = hub.jobs[name]
        if asked.inference_job.job_state == state.JOB_STATE_CREATED and not hub.endless:
            asked.inference_job.admin_url = hub.execute(asked.inference_job)
            asked.inference_job.job_state = state.JOB_STATE_DONE
        return _answer(asked)

    @app.get("/api/v1/jobs/<name>/result/")
    def result(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        job = hub.jobs[name].inference_job
        found = wire.InferenceJobResult(inference_job_id=name, output_dataset_id=job.admin_url)
        if job.is_profiling_on:
            times = [MEAN_US - 250, MEAN_US, MEAN_US + 250]
            detail = wire.ProfileDetail(major_version=1, minor_version=2, execution_time=times[0])
            detail.all_execution_times.extend(times)
            found.detail.CopyFrom(detail)
        return _answer(wire.JobResult(inference_job_result=found))

    return app


@contextmanager
def local_hub(folder: Path) -> Iterator[LocalHub]:
    """Serve an AI Hub on a free port of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    hub = LocalHub(folder=folder)
    server = make_server("127.0.0.1", 0, application(hub), threaded=True)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield hub
    finally:
        server.shutdown()
        serving.join()
        server.server_close()

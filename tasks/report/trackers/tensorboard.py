"""Writes a run for TensorBoard: a folder of event files per run, and in it one per cell, with its hyperparameters."""

# pyright: reportAttributeAccessIssue=false
# The classes of protocol buffers are made when their modules are imported.

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from qnnsweep.tasks.report.trackers.tracked import Tracked, TrackedRun

OPEN = "tensorboard --logdir {folder}"


def has(run_id: str, folder: Path) -> bool:
    """Return whether the run is already in the folder."""
    return (folder / run_id).exists()


def write(run: TrackedRun, folder: Path) -> None:
    """Write the event files of the run, and of its cells, into the folder, in which they appear together."""
    started, ended = run.started.timestamp(), run.ended.timestamp()
    names = dict.fromkeys(name for cell in run.cells for name in cell.parameters)
    metrics = dict.fromkeys(name for cell in run.cells for name in cell.metrics)
    whole = summary_v2.hparams_config_pb(
        [summary_v2.HParam(name) for name in names], [summary_v2.Metric(name) for name in metrics], started
    )
    with TemporaryDirectory(dir=folder) as temporary:
        partial = Path(temporary) / run.run_id
        _write_events(partial, ended, [whole, *_values(run.whole)])
        for cell in run.cells:
            first = summary_v2.hparams_pb(cell.parameters, trial_id=cell.name, start_time_secs=started)
            _write_events(partial / cell.name, ended, [first, *_values(cell), _end(cell, ended)])
        partial.rename(folder / run.run_id)


def _values(one: Tracked) -> Iterator[Summary]:
    yield Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in one.metrics.items()])
    texts = create_summary_metadata(display_name="", description="")
    values = ((name, make_tensor_proto([text.encode()])) for name, text in one.tags.items())
    yield Summary(value=[Summary.Value(tag=name, tensor=value, metadata=texts) for name, value in values])


def _end(cell: Tracked, time: float) -> Summary:
    """Return the end of a cell. TensorBoard's own function for it needs TensorFlow."""
    status = api_pb2.STATUS_FAILURE if cell.has_failed else api_pb2.STATUS_SUCCESS
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time)
    about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def _write_events(folder: Path, time: float, summaries: list[Summary]) -> None:
    writer = EventFileWriter(str(folder))
    for summary in summaries:
        writer.add_event(Event(wall_time=time, step=0, summary=summary))
    writer.close()

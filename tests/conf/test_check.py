"""A wrong value is refused in one line that names the key, the value and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from tests.conf.conftest import Refused

QUANT_DTYPES = "16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, 8a8w, fp16a8w"
SOCS = (
    "QCM6490, QCS9100, SA8255, SA8295, SA8797, SAR2230P, SC8380XP, SM8350, SM8450, SM8475, SM8550, SM8650, SM8750, "
    "SM8845, SM8850, SSG2115P, SSG2125P, SW6100, SXR1230P, SXR2230P, SXR2330P"
)
SCHEMES = "16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, 8a8w, fp16, fp16a8w, fp32"
DTYPES = "bool, float16, float32, float64, int16, int32, int64, int8, uint8"
NO_BUCKET = (
    "artifacts: not of the form s3://bucket/prefix, of letters, digits and . _ = + -; set the endpoint and the "
    "credentials in the environment, with AWS_ENDPOINT_URL and AWS_PROFILE or AWS_ACCESS_KEY_ID"
)
REFUSALS = {
    "measure.iterations=0": "measure.iterations=0: 1 or more",
    "measure.operator_samples=-1": "measure.operator_samples=-1: 1 or more",
    "measure.warm_up=-1": "measure.warm_up=-1: 0 or more",
    f"measure.iterations={10**22}": f"measure.iterations={10**22}: at most 1000000000",
    f"measure.debug_buffer_bytes={10**22}": f"measure.debug_buffer_bytes={10**22}: at most {1 << 40}",
    "tolerance.introduced_operators=-3": "tolerance.introduced_operators=-3: 0 or more",
    "device.below_celsius=nan": "device.below_celsius=nan: a finite number (device local)",
    "device.adb_server=localhost:99999": "device.adb_server=localhost:99999: a port is from 1 to 65535 (device local)",
    "device.ssh.jump=gate:0": "device.ssh.jump=gate:0: a port is from 1 to 65535 (device local)",
    "schedule.cron='0 22 * * * * *'": (
        "schedule.cron=0 22 * * * * *: must be five fields, for example 0 22 * * * for every night at ten"
    ),
    "measure.metrics=[mse,l3]": (
        "measure.metrics=l3: did you mean l1? package.module:function, or one of cosine, l1, max_abs, max_steps, "
        "max_ulp, mean_abs, mean_steps, mse, nmse, psnr_db, relative_l1, snr_db, sqnr_db"
    ),
    "measure.references=[edge,quantised]": (
        "measure.references=quantised: no such reference; did you mean quantized? one of edge, exported, quantized"
    ),
    "measure.profile_level=1": "measure.profile_level=1: one of 0, 2, 3",
    "measure.debug_buffer_bytes=0": "measure.debug_buffer_bytes=0: 1 or more",
    "scheme.calibration_samples=0": "scheme.calibration_samples=0: 1 or more (scheme 8a8w)",
    "limits.parallel=0": "limits.parallel=0: 1 or more",
    "limits.shard_attempts=0": "limits.shard_attempts=0: 1 or more",
    "limits.silence_s=30": "limits.silence_s=30.0: 60 or more",
    "limits.child_deadline_s=0": "limits.child_deadline_s=0.0: above 0",
    "limits.child_memory_gib=inf": "limits.child_memory_gib=inf: a finite number",
    "trend.nights=0": "trend.nights=0: 1 or more",
    "trend.least_nights=2": "trend.least_nights=2: 3 or more",
    "trend.sigmas=-1": "trend.sigmas=-1.0: 0 or more",
    "trend.floors.pte_bytes=nan": "trend.floors.pte_bytes=nan: a finite number",
    "device.deadline_s=nan": "device.deadline_s=nan: a finite number (device local)",
    "tolerance.final_snr_db={8a8w:nan}": "tolerance.final_snr_db.8a8w=nan: a finite number",
    "tolerance.top1_agreement={8a8w:95}": "tolerance.top1_agreement.8a8w=95.0: at most 1",
    "tolerance.operators={8a8w:{snr_db:nan}}": "tolerance.operators.8a8w.snr_db=nan: a finite number",
    "tolerance.operators={8a8w:{steps:-1}}": "tolerance.operators.8a8w.steps=-1.0: 0 or more",
    "tolerance.operators={8a8w:{steps:inf}}": "tolerance.operators.8a8w.steps=inf: a finite number",
    "tolerance.final_snr_db={8a8q:20}": (
        "tolerance.final_snr_db.8a8q: no such key; did you mean 8a8w? in tolerance.final_snr_db: fp32, fp16, 16a16w, "
        "16a8w, fp16a8w, 8a8w, 16a4w, 16a4w_block; to add it, write +tolerance.final_snr_db={8a8q: …}"
    ),
    "tolerance.operators={8a8q/aten.cat.default:{steps:1}}": (
        "tolerance.operators.8a8q/aten.cat.default: no such key; did you mean */aten.cat.default? in "
        "tolerance.operators: fp32, fp16, 16a16w, 16a8w, fp16a8w, 8a8w, 16a4w, 16a4w_block, 8a4w, 16a2w, "
        "*/aten.alias_copy.default, */aten.cat.default and 16 more; to add it, write "
        "+tolerance.operators={8a8q/aten.cat.default: …}"
    ),
    "+tolerance.final_snr_db={8a8q:20}": (
        f"tolerance.final_snr_db.8a8q=20.0: no such scheme; did you mean 8a8w? one of {SCHEMES}"
    ),
    "+tolerance.top1_agreement={8a8q:0.5}": (
        f"tolerance.top1_agreement.8a8q=0.5: no such scheme; did you mean 8a8w? one of {SCHEMES}"
    ),
    "+tolerance.operators={8a8q/aten.cat.default:{steps:1}}": (
        f"tolerance.operators.8a8q/aten.cat.default: no such scheme; did you mean 8a8w? one of {SCHEMES}"
    ),
    "artifacts=''": "artifacts=: empty; the path of a folder, or s3://bucket/prefix",
    "artifacts=s3://": NO_BUCKET,
    "artifacts=s3://a": NO_BUCKET,
    "artifacts=s3://sweeps/a//b": NO_BUCKET,
    "artifacts=s3://sweeps/a/../b": NO_BUCKET,
    "artifacts=s3://sweeps/a%20b": NO_BUCKET,
    "artifacts='s3://key:secret@sweeps/a'": NO_BUCKET,
    "artifacts='s3://sweeps/a?endpoint_override=x'": NO_BUCKET,
    "artifacts=gs://sweeps/a": NO_BUCKET,
    "cache_folder=here": "cache_folder=here: only valid with artifacts=s3://bucket/prefix",
    "model.name=''": "model.name=: empty; any text of 1 to 200 characters",
    f"model.name={'x' * 201}": f"model.name={'x' * 117}...: 201 characters; at most 200",
    "model.factory=net": (
        "model.factory=net: not of the form package.module:function or folder/file.py:function (model my_net)"
    ),
    "model.evaluation.source='os.path:'": (
        "model.evaluation.source=os.path:: not of the form "
        "package.module:function or folder/file.py:function (model my_net)"
    ),
    "model.inputs.0.dtype=flot32": (
        f"model.inputs[0].dtype=flot32: no such dtype; did you mean float32? one of {DTYPES} (model my_net)"
    ),
    "model.inputs.0.shape=[0,3]": "model.inputs[0].shape=[0, 3]: every dimension is 1 or more (model my_net)",
    "model.inputs.0.name=''": (
        "model.inputs[0].name=: empty; the argument's name in the module's forward (model my_net)"
    ),
    "model.inputs=[{name:x,shape:[1]},{name:x,shape:[1]}]": "model.inputs: two inputs are named x (model my_net)",
    "model.methods=[]": "model.inputs=[InputConfig(name='x', shape=[1, 3, 8, 8], dtype='float32')]: set "
    "model.methods[…].inputs, because every method has its own (model my_net)",
    "model.evaluation=null": (
        "model.evaluation=null: every comparison needs samples; set model.evaluation.source (model my_net)"
    ),
    "model.evaluation.count=0": "model.evaluation.count=0: 1 or more (model my_net)",
    "model.calibration=null": (
        "model.calibration=null: scheme 8a8w is quantized and model my_net has nothing to calibrate with; "
        "give model.calibration.source"
    ),
    "scheme.quant_dtype=8a9w": (
        f"scheme.quant_dtype=8a9w: did you mean 8a4w or 8a8w? one of {QUANT_DTYPES} when scheme.precision=quantized "
        "(scheme 8a8w)"
    ),
    "soc.name=SM8651": f"soc.name=SM8651: backend qnn has no such SoC; did you mean SM8650? one of {SOCS}",
    "scheme.precision=float16": "scheme.quant_dtype=8a8w: null when scheme.precision=float16 (scheme 8a8w)",
    "scheme.quant_dtype=16a4w_block": "scheme.block_size={}: at least one operator type (scheme 8a8w)",
    "+scheme.block_size.conv2d=[1,16]": (
        "scheme.block_size={'conv2d': [1, 16]}: empty for quant_dtype 8a8w (scheme 8a8w)"
    ),
    "scheme.observer=MinMax": (
        "scheme.observer=MinMax: no such observer; did you mean MinMaxObserver? one of HistogramObserver, "
        "MinMaxObserver, MovingAverageMinMaxObserver (scheme 8a8w)"
    ),
}


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_a_wrong_value_is_refused_in_one_line(refused: Refused, override: str, line: str) -> None:
    assert refused(override) == line


def test_a_tolerance_may_name_a_scheme_by_its_own_name_and_by_that_of_its_file(mine: Path) -> None:
    (mine / "scheme").mkdir()
    (mine / "scheme" / "file_name.yaml").write_text("name: own_name\nprecision: quantized\nquant_dtype: 8a8w\n")
    limits = "+tolerance.final_snr_db={own_name:20,file_name:20,renamed:20}"
    loaded = load(["model=my_net", "scheme=8a8w", "scheme.name=renamed", limits], config_dirs=[mine])
    assert loaded.cells[0].request.tolerance.final_snr_db["own_name"] == 20


METHODS = "[{name: a, inputs: [{name: x, shape: [1]}], evaluation: {source: 'a.b:c'}}"
METHOD_REFUSALS = {
    "[]": "model.methods=[]: null, or a list of one or more methods",
    f"{METHODS}, {METHODS[1:]}]": "model.methods: two methods are named a",
    "[{name: a}]": (
        "model.methods[0].evaluation=null: every comparison needs samples; set model.methods[0].evaluation.source"
    ),
    "[{name: a-b}]": "model.methods[0].name=a-b: a name of letters, digits and underscores",
    f"{METHODS}]": (
        "model.methods[0].calibration=null: scheme 8a8w is quantized and model my_net has nothing to calibrate with; "
        "give model.methods[0].calibration.source"
    ),
}


@pytest.mark.parametrize(("methods", "line"), METHOD_REFUSALS.items())
def test_a_wrong_method_is_refused_in_one_line(refused: Refused, mine: Path, methods: str, line: str) -> None:
    (mine / "model" / "my_net.yaml").write_text(f"name: my_net\nfactory: my_package.nets:net\nmethods: {methods}\n")
    message = refused("scheme=8a8w")
    assert message in (line, f"{line} (model my_net)")


WORK_FOLDER = "an absolute path of at least two names that only qnnsweep uses, such as /data/local/tmp/qnnsweep"
DEVICE_REFUSALS = {
    ("adb", "device.address=null"): "device.address=null: adb needs a serial or host:port",
    ("adb", "device.address=-x"): "device.address=-x: no serial begins with a hyphen",
    ("ssh", "device.address=' '"): "device.address= : ssh needs [user@]host[:port]",
    ("ssh", "device.address='a b'"): "device.address=a b: not of the form [user@]host[:port]",
    ("ssh", "device.ssh.jump='a b'"): "device.ssh.jump=a b: not of the form [user@]host[:port]",
    ("ssh", "device.ssh.keep_alive_s=-1"): "device.ssh.keep_alive_s=-1: 0 or more",
    ("adb", "device.adb_server=x"): "device.adb_server=x: not of the form host:port",
    ("adb", "device.work_folder=/tmp"): f"device.work_folder=/tmp: {WORK_FOLDER}",
    ("adb", "device.work_folder=null"): f"device.work_folder=null: {WORK_FOLDER}",
    ("adb", "device.work_folder=/a/../b/c"): f"device.work_folder=/a/../b/c: {WORK_FOLDER}",
    ("adb", "device.lease.acquire=[a]"): "device.lease.release=[]: the command that gives the device back",
    ("adb", "device.lock_folder=here"): "device.lock_folder=here: an absolute path on the device",
    ("adb", "device.python=null"): "device.python=null: the Python with executorch on the device",
    ("adb", "device.runner=native"): (
        "device.native_folder=null: the folder of a build with qnn_executor_runner in it"
    ),
    ("adb", "+device.environment.A-B=x"): "device.environment.A-B: not the name of an environment variable",
    ("adb", "device.least_free_mib=-1"): "device.least_free_mib=-1: 0 or more",
}
DEVICE = """\
name: phone
transport: {transport}
address: a-b
soc: SM8650
work_folder: /data/local/tmp/qnnsweep
python: /data/python
"""


@pytest.mark.parametrize(("transport", "override"), DEVICE_REFUSALS, ids=lambda _: "")
def test_a_wrong_device_is_refused_in_one_line(refused: Refused, mine: Path, transport: str, override: str) -> None:
    (mine / "device").mkdir()
    (mine / "device" / "phone.yaml").write_text(DEVICE.format(transport=transport))
    assert refused("device=phone", override) == f"{DEVICE_REFUSALS[transport, override]} (device phone)"

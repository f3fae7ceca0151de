"""Every wrong request is refused in one line that names the key, the value and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import RequestError
from conf.load import load

SCHEMES = "16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, 8a8w, fp16, fp16a8w, fp32"
QUANT_DTYPES = "16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, 8a8w, fp16a8w"
SOCS = (
    "QCM6490, QCS9100, SA8255, SA8295, SA8797, SAR2230P, SC8380XP, SM8350, SM8450, SM8475, SM8550, SM8650, SM8750, "
    "SM8845, SM8850, SSG2115P, SSG2125P, SW6100, SXR1230P, SXR2230P, SXR2330P"
)
DTYPES = "bool, float16, float32, float64, int16, int32, int64, int8, uint8"
TWO_OF_ONE_NAME = (
    "two different cells would both be called model={} scheme=8a8w soc=SM8650 backend=qnn device=local; "
    "only model, scheme, soc, backend, device tell cells apart: give each its own name"
)


def refused(overrides: list[str], folder: Path) -> str:
    with pytest.raises(RequestError) as caught:
        load(["model=my_net", *overrides], config_dirs=[folder])
    assert str(caught.value).isprintable()
    return str(caught.value)


NO_BUCKET = (
    "artifacts: not of the form s3://bucket/prefix, of letters, digits and . _ = + -; where the store is and who may "
    "use it say the environment's AWS_ENDPOINT_URL and AWS_PROFILE or AWS_ACCESS_KEY_ID"
)
REFUSALS = {
    "scheme=9a9w": f"scheme=9a9w: no such scheme; one of {SCHEMES}, did you mean 8a8w?",
    "scheme=": f"scheme=: one of {SCHEMES}; to sweep write scheme=a,b",
    "scheme=null": f"scheme=null: one of {SCHEMES}; to sweep write scheme=a,b",
    "scheme=[8a8w,16a8w]": f"scheme=['8a8w', '16a8w']: one of {SCHEMES}; to sweep write scheme=a,b",
    "backend=gpu": "backend=gpu: no such backend; one of portable, qnn, xnnpack",
    "experiment=nightli": "experiment=nightli: no such experiment; one of nightly, quickstart, did you mean nightly?",
    "experiment=nightly,quickstart": "experiment=nightly,quickstart: one sweep has one experiment",
    "soc=glob(XX*)": "soc=glob(XX*): no value in it",
    "~scheme": "~scheme: write scheme=name",
    "scheme@device=8a8w": "scheme@device=8a8w: write scheme=name",
    "device=no/such/file.yaml": "device=no/such/file.yaml: no such file",
    "modle=x": (
        "modle: no such key; there are: artifacts, backend, cache_folder, device, farm, limits, measure, model, "
        "retention, reuse, schedule, scheme, soc, tolerance, trend, did you mean model?"
    ),
    "measure.iteration=3": (
        "measure.iteration: no such key; in measure: debug_buffer_bytes, dump_operators, iterations, metrics, "
        "operator_samples, performance_mode, profile_level, references, replay, warm_up, did you mean iterations?"
    ),
    "+soc.colour=red": "soc.colour: no such key; in soc: arch, name, vtcm_mib",
    "++limits={colour: red}": (
        "limits.colour: no such key; in limits: child_deadline_s, child_memory_gib, memory_gib, parallel, "
        "shard_attempts, silence_s"
    ),
    "model.arguments.height=3": "model.arguments.height: no such key; write +model.arguments.height=… to add it",
    "measure.iterations=many": "measure.iterations=many: a whole number",
    "measure.iterations=1.5": "measure.iterations=1.5: a whole number",
    "measure.dump_operators=7.5": "measure.dump_operators=7.5: true or false",
    "measure=3": (
        "measure=3: a mapping with performance_mode, warm_up, iterations, operator_samples, dump_operators, replay, "
        "references, debug_buffer_bytes, profile_level, metrics"
    ),
    "artifacts=null": "artifacts=null: text",
    "scheme.precision=int8": "scheme.precision=int8: one of float16, float32, quantized",
    "limits.child_memory_gib=lots": "limits.child_memory_gib=lots: a number",
    "measure.iterations=0": "measure.iterations=0: 1 or more",
    "measure.operator_samples=-1": "measure.operator_samples=-1: 1 or more",
    "measure.warm_up=-1": "measure.warm_up=-1: 0 or more",
    "measure.metrics=[mse,l3]": (
        "measure.metrics=l3: package.module:function, or one of cosine, l1, max_abs, max_steps, max_ulp, mean_abs, "
        "mean_steps, mse, nmse, psnr_db, relative_l1, snr_db, sqnr_db, did you mean l1?"
    ),
    "measure.references=[edge,quantised]": (
        "measure.references=quantised: no such reference; one of edge, exported, quantized, did you mean quantized?"
    ),
    "measure.references=exported": "measure.references=exported: a list, each item text",
    "measure.profile_level=1": "measure.profile_level=1: one of 0, 2, 3",
    "measure.debug_buffer_bytes=0": "measure.debug_buffer_bytes=0: 1 or more",
    "scheme.calibration_samples=0": "scheme.calibration_samples=0: 1 or more (scheme 8a8w)",
    "limits.parallel=0": "limits.parallel=0: 1 or more",
    "limits.shard_attempts=0": "limits.shard_attempts=0: 1 or more",
    "limits.silence_s=30": "limits.silence_s=30.0: 60 or more, two heartbeats of Prefect's",
    "limits.child_deadline_s=0": "limits.child_deadline_s=0.0: a number above 0",
    "limits.child_memory_gib=inf": "limits.child_memory_gib=inf: a number above 0",
    "trend.nights=0": "trend.nights=0: 1 or more",
    "trend.sigmas=-1": "trend.sigmas=-1.0: a number, 0 or more",
    "trend.floors.pte_bytes=nan": "trend.floors.pte_bytes=nan: a number, 0 or more",
    "trend.nights=10,20": "trend.nights=10,20: one sweep has one trend.nights",
    "device.deadline_s=nan": "device.deadline_s=nan: a number above 0 (device local)",
    "farm=nowhere": "farm=nowhere: no such farm; one of local",
    "pool=[]": (
        "pool: no such key; there are: artifacts, backend, cache_folder, device, farm, limits, measure, model, "
        "retention, reuse, schedule, scheme, soc, tolerance, trend"
    ),
    "tolerance.final_snr_db={8a8w:nan}": "tolerance.final_snr_db.8a8w=nan: a number of dB",
    "tolerance.top1_agreement={8a8w:95}": "tolerance.top1_agreement.8a8w=95.0: a share from 0 to 1",
    "tolerance.operators={8a8w:{snr_db:nan}}": "tolerance.operators.8a8w.snr_db=nan: a number of dB",
    "tolerance.operators={8a8w:{steps:-1}}": "tolerance.operators.8a8w.steps=-1.0: a number of steps, 0 or more",
    "tolerance.operators={8a8w:{steps:inf}}": "tolerance.operators.8a8w.steps=inf: a number of steps, 0 or more",
    "artifacts=''": "artifacts=: empty; the path of a folder, or s3://bucket/prefix",
    "artifacts=s3://": NO_BUCKET,
    "artifacts=s3://a": NO_BUCKET,
    "artifacts=s3://sweeps/a//b": NO_BUCKET,
    "artifacts=s3://sweeps/a/../b": NO_BUCKET,
    "artifacts=s3://sweeps/a%20b": NO_BUCKET,
    "artifacts='s3://key:secret@sweeps/a'": NO_BUCKET,
    "artifacts='s3://sweeps/a?endpoint_override=x'": NO_BUCKET,
    "artifacts=gs://sweeps/a": NO_BUCKET,
    "cache_folder=here": "cache_folder=here: of use with artifacts=s3://bucket/prefix only",
    "+device.environment={'A=B':x}": (
        "+device.environment={'A=B':x}: not of the form key=value: no viable alternative at input '{'A=B''"
    ),
    "model.name=''": "model.name=: empty; any text of 1 to 200 characters",
    f"model.name={'x' * 201}": f"model.name={'x' * 117}...: 201 characters; at most 200",
    "model.factory=net": "model.factory=net: not of the form package.module:function (model my_net)",
    "model.evaluation.source='os.path:'": (
        "model.evaluation.source=os.path:: not of the form package.module:function (model my_net)"
    ),
    "model.inputs=[]": (
        "model.inputs=[]: a model has at least one input, each with a name, a shape and a dtype (model my_net)"
    ),
    "model.inputs.0.dtype=flot32": (
        f"model.inputs[0].dtype=flot32: no such dtype; one of {DTYPES}, did you mean float32? (model my_net)"
    ),
    "model.inputs.0.shape=[0,3]": "model.inputs[0].shape=[0, 3]: every dimension is 1 or more (model my_net)",
    "model.inputs.0.name=''": (
        "model.inputs[0].name=: empty; the argument's name in the module's forward (model my_net)"
    ),
    "model.inputs=[{name:x,shape:[1]},{name:x,shape:[1]}]": "model.inputs: two are named x (model my_net)",
    "model.evaluation=null": (
        "model.evaluation=null: every comparison needs samples; give model.evaluation.source (model my_net)"
    ),
    "model.evaluation.count=0": "model.evaluation.count=0: 1 or more samples (model my_net)",
    "model.calibration=null": (
        "model.calibration=null: scheme 8a8w is quantized and model my_net has nothing to calibrate with; "
        "give model.calibration.source"
    ),
    "scheme.quant_dtype=8a9w": (
        f"scheme.quant_dtype=8a9w: one of {QUANT_DTYPES} when scheme.precision=quantized, did you mean 8a8w? "
        "(scheme 8a8w)"
    ),
    "soc.name=SM8651": f"soc.name=SM8651: ExecuTorch has no such SoC; one of {SOCS}, did you mean SM8650?",
    "scheme.precision=float16": "scheme.quant_dtype=8a8w: null when scheme.precision=float16 (scheme 8a8w)",
    "scheme.quant_dtype=16a4w_block": "scheme.block_size={}: at least one operator type (scheme 8a8w)",
    "+scheme.block_size.conv2d=[1,16]": (
        "scheme.block_size={'conv2d': [1, 16]}: empty for quant_dtype 8a8w (scheme 8a8w)"
    ),
    "scheme.observer=MinMax": (
        "scheme.observer=MinMax: no such observer; one of HistogramObserver, MinMaxObserver, "
        "MovingAverageMinMaxObserver, did you mean MinMaxObserver? (scheme 8a8w)"
    ),
    "model": "model: not of the form key=value: missing EQUAL at '<EOF>'",
    "=3": "=3: not of the form key=value: no key",
    "a b=3": "a b=3: not of the form key=value: a character out of place",
    "model=my_other_net": "model=my_other_net: model is given twice; to sweep write model=a,b",
    "artifacts=a,b": "artifacts=a,b: one sweep has one artifacts",
    "limits.parallel=1,2": "limits.parallel=1,2: one sweep has one limits.parallel",
    "measure.iterations=1,2": f"measure.iterations: {TWO_OF_ONE_NAME.format('my_net')}",
    "tolerance=default,none": f"tolerance: {TWO_OF_ONE_NAME.format('my_net')}",
    "measure.iterations=range(4,4)": "measure.iterations=range(4,4): no value in it",
    "measure.iterations=range(1,9,0)": (
        "measure.iterations=range(1,9,0): no list of values can be made of it: range() arg 3 must not be zero"
    ),
    "measure.iterations=range(1,1000000000)": (
        "measure.iterations=range(1,1000000000): a sweep has at most 10000 cells"
    ),
    "measure.iterations=glob(*)": (
        "measure.iterations=glob(*): glob chooses among the options of model, scheme, soc, backend, device, "
        "farm, tolerance, experiment only"
    ),
    "hydra.run.dir=x": "hydra.run.dir=x: of Hydra's own keys hydra.searchpath alone is understood here",
    "hydra/launcher=basic": "hydra/launcher=basic: of Hydra's own keys hydra.searchpath alone is understood here",
    "hydra.searchpath=3": "hydra.searchpath=3: a list of folders: hydra.searchpath=[/my/conf]",
    "hydra.searchpath=[/no/where]": (
        "/no/where: not a folder of configuration: it has none of model/, scheme/, soc/, backend/, device/, "
        "farm/, tolerance/, experiment/"
    ),
}


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_a_wrong_override_is_refused_in_one_line(mine: Path, override: str, line: str) -> None:
    assert refused([override], mine) == line


def test_one_sweep_has_one_folder_of_artifacts_even_through_an_interpolation(mine: Path) -> None:
    assert refused(["artifacts=${soc.name}", "soc=SM8550,SM8650"], mine) == (
        "artifacts: it differs between cells; one sweep has one"
    )


def test_a_sweep_with_too_many_cells_is_refused_before_any_is_composed(mine: Path) -> None:
    ranges = ["measure.iterations=range(1,200)", "measure.warm_up=range(1,200)"]
    assert refused(ranges, mine) == "39601 cells: a sweep has at most 10000"


def test_two_models_of_one_name_are_refused(mine: Path) -> None:
    file = mine / "model" / "my_other_net.yaml"
    file.write_text(file.read_text().replace("name: my_other_net", "name: my_net").replace("width: 2", "width: 3"))
    with pytest.raises(RequestError) as caught:
        load(["model=my_net,my_other_net"], config_dirs=[mine])
    assert str(caught.value) == f"model: {TWO_OF_ONE_NAME.format('my_net')}"


def test_two_options_of_one_name_are_refused(mine: Path, tmp_path: Path) -> None:
    (mine / "soc").mkdir()
    file = mine / "soc" / "SM8650.yaml"
    file.write_text("{name: SM8650, arch: 75, vtcm_mib: 8}")
    shipped = Path(__file__).parents[2] / "conf/soc/SM8650.yaml"
    assert refused([], mine) == f"{file}: there is a soc of that name already, {shipped}; rename one"
    elsewhere = file.rename(tmp_path / "SM8650.yaml")
    assert refused([f"soc={elsewhere}"], mine) == (
        f"{elsewhere}: there is a soc of that name already, {shipped}; rename one"
    )


FILES = {
    "a: [": "{file}, line 1: not YAML: expected the node content, but found '<stream end>' (in model='wrong')",
    "": "model.name: not given; text (in model='wrong')",
    "just text": (
        "model.just text: no such key; in model: arguments, calibration, classifier, evaluation, factory, inputs, name "
        "(in model/wrong.yaml)"
    ),
    "- item": (
        "ValidationError raised while composing config: Invalid type assigned: list is not a subclass of "
        "ModelConfig. value: [... (in model/wrong.yaml)"
    ),
    "nam: x": (
        "model.nam: no such key; in model: arguments, calibration, classifier, evaluation, factory, inputs, name, "
        "did you mean name? (in model/wrong.yaml)"
    ),
    "evaluation: {source: a.b:c, count: some}": "model.evaluation.count=some: a whole number (in model/wrong.yaml)",
    "inputs: [{name: x, shape: [1, wide]}]": (
        "shape[1]=wide: Value 'wide' of type 'str' could not be converted to Integer (in model/wrong.yaml)"
    ),
    "inputs: [{name: x, shap: [1]}]": (
        "shap: no such key; there are: dtype, name, shape, did you mean shape? (in model/wrong.yaml)"
    ),
    "arguments: {2: x}": "model.arguments.2: Key 2 (int) is incompatible with (str) (in model/wrong.yaml)",
    "name: ${soc.nam}": "model.name: Interpolation key 'soc.nam' not found (in model='wrong')",
    'name: "\\udcff"\nfactory: a:b': "model.name=\\udcff: not valid Unicode",
    "name: ${model.name}": "model.name: Recursive interpolation detected (in model='wrong')",
    "defaults: [nope]": "Could not load 'model/nope'. (in model/wrong.yaml)",
}


@pytest.mark.parametrize(("text", "line"), FILES.items(), ids=lambda _: "")
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        load([f"model={file}"])
    assert str(caught.value) == line.format(file=file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match=r"^not a text file in UTF-8: .* \(in model='wrong'\)$"):
        load([f"model={file}"])

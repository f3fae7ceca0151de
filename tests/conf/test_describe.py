"""An unknown key is refused with the keys that there are, a value of a wrong type with the types that are accepted."""

from __future__ import annotations

import pytest

from tests.conf.conftest import Refused

KEYS = (
    "there are: artifacts, backend, budget, by_operator, cache_folder, calibration, certificate, device, farm, limits, "
    "masked_names, measure, model, object_store, prefect, retention, reuse, samples, schedule, scheme, soc, target, "
    "tolerance, toolchain, trend, try_impossible"
)
REFUSALS = {
    "modle=x": f"modle: no such key; did you mean model? {KEYS}",
    "measur.iterations=3": f"measur: no such key; did you mean measure? {KEYS}",
    "measure.iteration=3": (
        "measure.iteration: no such key; did you mean iterations? in measure: budget, cures, debug_buffer_bytes, "
        "debug_programs, dump_operators, iterations, metrics, operator_samples, performance_mode, profile_level, "
        "references, replay, second_runtime, warm_up"
    ),
    "+soc.colour=red": "soc.colour: no such key; in soc: arch, name, vtcm_mib",
    "++limits={colour: red}": (
        "limits.colour: no such key; in limits: child_deadline_s, child_memory_gib, memory_gib, new_cases, "
        "parallel, shard_attempts, silence_s"
    ),
    "model.arguments.height=3": (
        "model.arguments.height: no such key; in model.arguments: width; to add it, write +model.arguments={height: …}"
    ),
    "measure.iterations=many": "measure.iterations=many: a whole number",
    "measure.iterations=1.5": "measure.iterations=1.5: a whole number",
    "measure.dump_operators=7.5": "measure.dump_operators=7.5: true or false",
    "measure=3": (
        "measure=3: a mapping with performance_mode, warm_up, iterations, operator_samples, dump_operators, "
        "debug_programs, replay, budget, cures, references, debug_buffer_bytes, profile_level, second_runtime, metrics"
    ),
    "artifacts=null": "artifacts=null: text",
    "scheme.precision=int8": "scheme.precision=int8: one of float16, float32, quantized",
    "limits.child_memory_gib=lots": "limits.child_memory_gib=lots: a number",
    "measure.references=exported": "measure.references=exported: a list, each item text",
    "pool=[]": f"pool: no such key; {KEYS}",
}


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_an_unknown_key_or_a_wrong_type_is_refused_in_one_line(refused: Refused, override: str, line: str) -> None:
    assert refused(override) == line

"""An operator case as the file of a model, so that it can be run, compared and reproduced like any other model."""

from dataclasses import asdict

import yaml

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.models import OWN_CALLS
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.cells.resources import prepare
from qnnsweep.tasks.atlas.collection import collected, model_of
from qnnsweep.tasks.errors import RequestError


def case_yaml(plan: Plan, name: str) -> str:
    """Return the case with this name, of the plan's collections, as YAML for the option `model=FILE`.

    Raises RequestError if there is no such case, or if it has no model.
    """
    resources = prepare(plan)
    make_importable(plan.folders)
    known: list[str] = []
    for model in {cell.request.model.name: cell.request.model for cell in plan.cells}.values():
        if model.cases == OWN_CALLS:
            raise RequestError(
                f"the cases of {model.name} are operators of a model; run the model itself", key="--case"
            )
        for case in resources.workers.call("export", collected, model, subject=(model.name,)).value.cases:
            known.append(case.name)
            if case.name == name and case.skipped is not None:
                raise RequestError(f"has no model: {case.skipped}", key="--case", value=name)
            if case.name == name:
                values = {key: value for key, value in asdict(model_of(case, model)).items() if value is not None}
                return yaml.safe_dump(values, sort_keys=False)
    similar = [case for case in known if name in case] or known
    names = ", ".join(similar[:20])
    raise RequestError(f"no such case; there are {len(known)}, such as {names}", key="--case", value=name)

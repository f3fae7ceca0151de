"""The files of a repair, in the folder of its run: the repaired scheme in two forms, and the page with all steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.repair import render_repair
from qnnsweep.tasks.results.quant_recipe import quant_recipe
from qnnsweep.tasks.results.recipe import scheme_yaml
from qnnsweep.tasks.results.repair_search import Search
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The paths of a repair's files on this machine."""

    scheme_file: str
    recipe_file: str
    page: str


def write_recipe(run: RunFacts, search: Search, rows: Mapping[str, Sequence[Row]], store: Store) -> Recipe:
    """Write the files of a repair into the store. `rows`: the rows of the tables `repair` and `certificate`."""
    step, folder = search.accepted, f"{run_folder(run.run_id)}/repair"
    name = f"{step.cells[0].request.scheme.name}_repaired"
    changes = [f"step {change.number}: {change.candidate.description}" for change in search.changes if change.candidate]
    text = scheme_yaml(
        replace(step.scheme, name=name), [f"Written by qnnsweep repair, run {run.run_id}: {search.reason}.", *changes]
    )
    page = render_repair(run, search.reason, rows["repair"], rows["certificate"], text)
    recipe = quant_recipe(step.scheme, f"The QuantRecipe of {name}. Written by qnnsweep repair, run {run.run_id}.")
    files = {f"{folder}/{name}.yaml": text, f"{folder}/recipe.py": recipe, f"{folder}/repair.html": page}
    for file, content in files.items():
        store.files.write(file, content.encode())
    scheme_file, recipe_file, page_file = (str(store.files.local(file)) for file in files)
    return Recipe(scheme_file=scheme_file, recipe_file=recipe_file, page=page_file)

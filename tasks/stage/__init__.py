"""The stages of a sweep as Prefect tasks. No other code in tasks/ imports Prefect.

The module `task` turns functions into Prefect tasks and configures these for a sweep. The module `result_cache` stores
the results of the tasks. The module `upstream` gives a task the results of other tasks, or why there are none.
"""

from qnnsweep.tasks.stage.result_cache import RECORDS
from qnnsweep.tasks.stage.task import OnChange, configure_task, is_reused, result_name, stage, stored_result
from qnnsweep.tasks.stage.upstream import Upstream

__all__ = ["RECORDS", "OnChange", "Upstream", "configure_task", "is_reused", "result_name", "stage", "stored_result"]

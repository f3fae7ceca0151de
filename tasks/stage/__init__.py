"""The stages of a sweep as Prefect tasks; the only code in tasks/ that imports Prefect.

`task` turns functions into tasks and configures them for a sweep. `result_cache` stores the results of the tasks.
"""

from tasks.stage.result_cache import RECORDS
from tasks.stage.task import OnChange, configure_task, is_reused, result_name, stage

__all__ = ["RECORDS", "OnChange", "configure_task", "is_reused", "result_name", "stage"]

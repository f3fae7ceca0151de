"""The stages of a sweep as Prefect tasks. No other code in tasks/ imports Prefect.

The module `task` turns functions into Prefect tasks and configures these for a sweep. The module `result_cache` stores
the results of the tasks.
"""

from tasks.stage.result_cache import RECORDS
from tasks.stage.task import OnChange, configure_task, is_reused, result_name, stage

__all__ = ["RECORDS", "OnChange", "configure_task", "is_reused", "result_name", "stage"]

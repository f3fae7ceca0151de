"""The stages of a sweep as Prefect tasks; the only code in tasks/ that imports Prefect.

`task` makes tasks of functions and configures them for one sweep, `result_cache` stores their results.
"""

from tasks.stage.result_cache import RECORDS
from tasks.stage.task import OnChange, configure_task, is_reused, result_name, stage

__all__ = ["RECORDS", "OnChange", "configure_task", "is_reused", "result_name", "stage"]

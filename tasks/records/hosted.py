"""The words between the host and the runner that asks Qualcomm AI Hub to execute programs.

This module is copied into the runner's archive.
"""

SETTINGS = "QNNSWEEP_AIHUB"
"""The environment variable with the runner's settings, a JSON object: `device`, `os` and `options` of the jobs, and
`wait_s`, the seconds after which the runner ends although a job has not ended."""
JOB = "AI Hub job"
"""What precedes the URL of a job in the runner's output."""
PROBLEM = "AI Hub:"
"""What precedes the reason for which the runner has no results."""
JOB_FAILED = "the job failed with"
"""What follows `PROBLEM` and precedes the type of the failure, a name without the prefix of the enumeration."""
TYPE_PREFIX = "JOB_FAILURE_TYPE_"
REFUSED_TOKEN, NO_CONFIGURATION = "the token is refused", "the client has no configuration that it can read"
NO_CLIENT = "the client cannot be imported"
NO_ANSWER, NO_END, WRONG_ANSWER = "the service cannot be used", "no end of", "the results are not those of the program"
"""The reasons that are none of a job."""

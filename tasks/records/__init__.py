"""The records that stages take and return, and the facts of a run."""

from tasks.records.atlas import *
from tasks.records.comparison import *
from tasks.records.error_detail import *
from tasks.records.launches import *
from tasks.records.methods import *
from tasks.records.program import *
from tasks.records.run import *
from tasks.records.stages import *
from tasks.records.steps import *

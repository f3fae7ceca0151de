"""The records that cross a stage's border, and those that a run leaves behind."""

from tasks.records.comparison import *
from tasks.records.program import *
from tasks.records.run import *
from tasks.records.stages import *

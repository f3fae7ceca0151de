"""The records that stages take and return, and the facts of a run."""

from qnnsweep.tasks.records.atlas import *
from qnnsweep.tasks.records.comparison import *
from qnnsweep.tasks.records.cures import *
from qnnsweep.tasks.records.error_detail import *
from qnnsweep.tasks.records.inspection import *
from qnnsweep.tasks.records.io_check import *
from qnnsweep.tasks.records.launches import *
from qnnsweep.tasks.records.lowered import *
from qnnsweep.tasks.records.methods import *
from qnnsweep.tasks.records.program import *
from qnnsweep.tasks.records.run import *
from qnnsweep.tasks.records.simulated import *
from qnnsweep.tasks.records.stages import *
from qnnsweep.tasks.records.steps import *

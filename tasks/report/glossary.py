"""What the words of the report mean. The page shows a meaning beside its word, and has a list of all meanings."""

from collections.abc import Mapping
from typing import Any

from qnnsweep.tasks.records.vocabulary import CAUSES, OPERATOR_STATUSES, RUNGS, TIMED_ON, VERDICTS

MEASURES: Mapping[str, str] = {
    "lowest final SNR": "The lowest signal-to-noise ratio of all final outputs and samples on the device, against "
    "eager fp32. ∞ means that all outputs are equal. The more samples, the lower the lowest.",
    "worst sample": "The sample that has the lowest final SNR. The sentence, the error budget and the worst operator "
    "are about this sample.",
    "SNR of the mean noise": "The noise-to-signal ratio of each sample's worst output, averaged over the samples. It "
    "does not depend on the number of samples. In parentheses: the 95 % interval, by the bootstrap over the samples.",
    "device against designed": "The lowest SNR of the final outputs against those of the rung designed. It judges the "
    "compiler and the hardware alone. ∞ means that all outputs are equal.",
    "top-1 agreement": "The share of samples with the same largest element on the device and in eager fp32. In "
    "parentheses: the 95 % score interval.",
    "observer effect": "The SNR of the debug program's final outputs against those of the shipping program: what "
    "logging the operators changes. ∞ means nothing, -∞ that an output of one program is NaN or zero.",
    "weights": "Where the model's weights come from. With random weights, accuracy has no meaning.",
    "origin of samples": "Where the samples come from, and how they were prepared and divided. With random numbers, "
    "the accuracy on real data can be another.",
    "inference time": "The shipping program's mean time for one sample by the runner's clock: the median over all "
    "samples. A time of the simulator says nothing about a device.",
    "DDR read": "The bytes that the program reads from DRAM, by the compiler's count.",
    "DDR write": "The bytes that the program writes to DRAM, by the compiler's count.",
    "spill / fill": "The bytes that the program moves to DRAM and back because the NPU's memory is too small, by the "
    "compiler's count.",
    "introduce error": "The operators for which the reference operator, on the device's own inputs, gives another "
    "result: the verdicts introduced and biased.",
    "masked": "The operators that are compared only over the elements that their readers use. Differences in the "
    "others have no effect.",
    "worst operator": "The operator to examine first: its error has the largest effect on a final output.",
    "stage of this cause": "The stage in which this error arises: in quantize, from the weights and the grids that "
    "were chosen; in execute, from what the device computes.",
    "final output with only this error": "The SNR of the final output if the worst operator's error by this cause were "
    "the only error.",
    "operators compared": "The operators whose value was logged by the device and compared with the reference.",
}
"""The measures of a cell, by their names on the page."""

TERMS: Mapping[str, str] = {
    "reference": "What a value of the device is compared with. For operators, it is the edge graph on the host, in "
    "float with the rounded weights; for final outputs, it is eager PyTorch in fp32.",
    "total": "The SNR of an operator's value on the device against the reference, over the elements that are used.",
    "inherited error": "The error that an operator's inputs already have.",
    "grid error": "The rounding of the operator's value to its quantization grid, and what the grid's ends cut off.",
    "introduced error": "The difference between the device's value and the right value for the device's own inputs.",
    "steps": "The unit of an error on a quantization grid: one step is the distance of two neighbouring values.",
    "gain": "The slope of the device's value over the right value. It is 1 for an operator without systematic error.",
    "clipped": "Elements beyond the ends of the grid: the device replaces them by the nearest end.",
    "codes used": "How many different quantized values the operator's value has.",
    "worst channel": "The SNR of the channel with the largest noise, which a mean over all channels can hide.",
    "share": "The part of the final error's energy that a cause has. The shares of all causes add up to 100 %. "
    "After ±: the standard error of an estimated share.",
    "without": "The SNR of the final output without this error, by a run that leaves it out.",
    "alone": "The SNR of the final output if this error were the only error.",
    "rung": "A stage on the way from eager PyTorch to the device. Each rung is compared with eager and with the one "
    "before it, so that the stage that adds the error is visible.",
    "delegate": "The part of the program that the accelerator runs. All other nodes run on the device's CPU.",
    "handle": "The debug handle: the number by which a logged value is matched with its operator.",
}
"""The terms of figures and tables, by their names on the page."""

GLOSSARY: Mapping[str, Mapping[Any, str]] = {
    "Measures of a cell": MEASURES,
    "Terms of figures and tables": TERMS,
    "Verdicts on operators": VERDICTS,
    "Causes of error": CAUSES,
    "Rungs": RUNGS,
    "Statuses of comparisons": OPERATOR_STATUSES,
    "Clocks": TIMED_ON,
}
"""All meanings, by the title of their group."""

"""The record of an error by cause, from the result of the replay."""

from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import ErrorParts


def error_parts(replayed: Replayed) -> ErrorParts:
    use, introduced = replayed.grid_use, replayed.introduced
    return ErrorParts(
        inherited_snr_db=replayed.inherited.snr_db,
        grid_snr_db=use.gap.snr_db if use else None,
        clipped_elements=use.clipped_elements if use else None,
        codes_used=use.codes_used if use else None,
        range_used=use.range_used if use else None,
        least_value=use.needed[0] if use else None,
        largest_value=use.needed[1] if use else None,
        introduced_mse=introduced.gap.mse,
        introduced_snr_db=introduced.gap.snr_db,
        introduced_channel_snr_db=introduced.channel_snr_db,
        introduced_max_abs=introduced.gap.max_abs,
        introduced_equal=introduced.equal,
        introduced_differing=introduced.differing,
        introduced_steps=introduced.max_steps,
        introduced_p999_steps=introduced.p999_steps,
        introduced_rms_steps=introduced.rms_steps,
        introduced_mean_steps=introduced.mean_steps,
        introduced_mean_steps_error=introduced.mean_steps_error,
        introduced_gain=introduced.gain,
    )

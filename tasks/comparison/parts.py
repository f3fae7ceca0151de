"""The record of an error by cause, from the result of the replay."""

from tasks.numerics.replay import Replayed
from tasks.records import ErrorParts


def error_parts(replayed: Replayed) -> ErrorParts:
    grid, introduced = replayed.grid, replayed.introduced
    return ErrorParts(
        inherited_snr_db=replayed.inherited.snr_db,
        grid_snr_db=grid.gap.snr_db if grid else None,
        clipped_elements=grid.clipped_elements if grid else None,
        codes_used=grid.codes_used if grid else None,
        range_used=grid.range_used if grid else None,
        introduced_mse=introduced.gap.mse,
        introduced_snr_db=introduced.gap.snr_db,
        introduced_channel_snr_db=introduced.channel_snr_db,
        introduced_max_abs=introduced.gap.max_abs,
        introduced_differing=introduced.differing,
        introduced_steps=introduced.max_steps,
        introduced_p999_steps=introduced.p999_steps,
        introduced_rms_steps=introduced.rms_steps,
        introduced_mean_steps=introduced.mean_steps,
        introduced_mean_steps_error=introduced.mean_steps_error,
        introduced_gain=introduced.gain,
    )

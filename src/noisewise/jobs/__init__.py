"""Many jobs: on local processes, or on a Ray cluster; what is done stays done, whatever stops the rest.

A `Job` is a function, a key and settings; `carry_out(jobs, folder, where)` is all there is to call. Results are JSON files by
key, so that a second call does what is missing, wherever it runs. Nothing here knows what a job does: sweeps, seeds, shadow
models, attributions and reproductions are the same.
"""

from __future__ import annotations

from noisewise.jobs.carrying import carry_out, note_of
from noisewise.jobs.job import Job
from noisewise.jobs.places import Local, Ray, Where, chosen

__all__ = ["Job", "Local", "Ray", "Where", "carry_out", "chosen", "note_of"]

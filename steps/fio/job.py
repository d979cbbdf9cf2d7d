"""fio's options for the job of one host, as a command line or a job file."""

from perfdag.steps.fio import report
from perfdag.steps.fio.files import Place
from perfdag.steps.fio.params import JOB, FioParams

PRERUN = f"{JOB}.prerun.txt"
"""fio's name for the output of exec_prerun."""
_PERCENTILES = ":".join(f"{p:g}" for p in report.PERCENTILES)


def options(params: FioParams, place: Place) -> list[tuple[str, str]]:
    """Return the job's options in the order of fio(1).

    fio separates file names by `:`, so a colon in a name is escaped.
    """
    target = ("filename", place.target) if place.target else ("directory", place.folder)
    pairs: list[tuple[str, object]] = [
        (target[0], target[1].replace(":", r"\:")),
        *(
            (name, getattr(params, name))
            for name in ("rw", "bs", "size", "iodepth", "ioengine", "numjobs", "nrfiles")
        ),
        ("direct", int(params.direct)),
        ("thread", int(params.thread)),
        ("group_reporting", 1),
        # Each host has its own folder, so names need not depend on who starts the job.
        ("unique_filename", 0),
        ("lat_percentiles", 1),
        ("clat_percentiles", 1),
        ("slat_percentiles", 1),
        ("percentile_list", _PERCENTILES),
    ]
    if "rw" in params.rw:
        pairs.append(("rwmixread", params.rwmixread))
    if params.percentage_random != 100:
        pairs.append(("percentage_random", params.percentage_random))
    if params.runtime is not None:
        pairs += [("time_based", 1), ("runtime", f"{round(params.runtime * 1e6)}us")]
    if params.ramp:
        pairs.append(("ramp_time", f"{round(params.ramp * 1e6)}us"))
    if params.fsync:
        pairs.append(("fsync", params.fsync))
    return [(name, str(value)) for name, value in pairs]


def job_file(params: FioParams, place: Place) -> str:
    """Return the job file for fio's client. exec_prerun records the start time beside the data."""
    lines = [
        f"{name}={value}"
        for name, value in [*options(params, place), ("exec_prerun", "date +%s.%N")]
    ]
    return "\n".join([f"[{JOB}]", *lines, ""])


def command(params: FioParams, place: Place, *more: tuple[str, str]) -> list[str]:
    """Return the command line of fio that runs the jobs, each with the options of `more`."""
    argv = ["fio", "--output-format=json"]
    for name, (own, others) in params.jobs().items():
        pairs = [("name", name), *options(own, place), *others.items(), *more]
        argv += [f"--{key}={value}" for key, value in pairs]
    return argv

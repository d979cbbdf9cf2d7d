"""The text of `job_file`: sections of a fio job file, each a job beside the others."""

import re

_TEXT = re.compile(r"[A-Za-z0-9_.,:/%+-]*")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIZE = re.compile(r"(\d+)([kmg])(?:i?b)?", re.I)
_ALIASES = {"readwrite": "rw", "blocksize": "bs"}
PARAMETERS = ("rw", "bs", "ioengine", "iodepth", "rwmixread", "percentage_random", "fsync")
"""Parameters that a section may set for its job; a section without one has that of the entry."""
OPTIONS = (
    "bssplit", "bsrange", "blocksize_range", "blockalign", "ba", "rw_sequencer",
    "random_distribution", "random_generator", "norandommap", "softrandommap",
    "randrepeat", "randseed", "rate", "rate_iops", "rate_process", "thinktime",
    "thinktime_blocks", "thinktime_spin", "thinktime_blocks_type", "fdatasync", "sync", "end_fsync",
    "fsync_on_close", "iodepth_batch", "iodepth_batch_submit", "iodepth_batch_complete",
    "iodepth_batch_complete_min", "iodepth_batch_complete_max", "iodepth_low",
    "io_submit_mode", "hipri", "fixedbufs", "registerfiles", "nonvectored",
    "sqthread_poll", "buffer_compress_percentage", "buffer_compress_chunk",
    "dedupe_percentage", "refill_buffers", "scramble_buffers", "zero_buffers", "fallocate",
    "nice", "prio", "prioclass",
)  # fmt: skip
"""Options that pass through. They change the I/O, and neither its place nor fio's output."""


def read_sections(text: str) -> dict[str, dict[str, str]]:
    """Return the options of each section, with those of `global` in it.

    A name without a value has `1`. Raises ValueError with the line and what to do.
    """
    common: dict[str, str] = {}
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            name = line[1:-1]
            if line[-1] != "]" or not _NAME.fullmatch(name) or name in sections:
                raise ValueError(
                    f"job_file: line {number}: {line!r} is no new section; write [NAME] once,"
                    " of letters, digits, _ and -"
                )
            if name == "global":
                current = common
            else:
                current = sections[name] = dict(common)
            continue
        option, equals, value = (part.strip() for part in line.partition("="))
        option = _ALIASES.get(option, option)
        if current is None:
            raise ValueError(f"job_file: line {number}: {option} comes before the first [NAME]")
        if option not in OPTIONS and option not in PARAMETERS:
            raise ValueError(
                f"job_file: line {number}: {option} does not pass through: it may change where fio"
                " works, what it starts or what perfdag reads; set the parameter of that name if"
                " there is one, or leave it out (perfdag benchmarks fio lists what passes)"
            )
        if not _TEXT.fullmatch(value):
            raise ValueError(
                f"job_file: line {number}: {option} has a value other than a number or a word"
            )
        size = _SIZE.fullmatch(value) if option == "bs" else None
        # fio's 4k is 4KiB, as the parameter takes it
        value = f"{size[1]}{size[2].upper()}iB" if size else value
        current[option] = value if equals else "1"
    if not sections:
        raise ValueError("job_file: no job: write [NAME] and its options below, one a line")
    return sections

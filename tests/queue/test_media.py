"""The commands of examples/queues.yaml against the programs of images/queue-media.

PERFDAG_TEST_MEDIA names a folder with its ffmpeg and sample_multi_transcode. No GPU is needed:
options, filters and codecs are checked, and that a program fails at the device. Whether a GPU does
the work is not.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

MEDIA = os.environ.get("PERFDAG_TEST_MEDIA", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "queues.yaml"
COMMANDS = {
    queue["name"]: [str(word) for word in queue["command"]]
    for queue in yaml.safe_load(EXAMPLE.read_text())["queues"]
    if queue.get("glob")
}
AT_DEVICE = r"renderD999|CONFIGURE LOADER"
"""What the programs say when their arguments are read and no device is found."""


def said(command: list[str]) -> str:
    argv = [
        word.replace("/usr/bin/", f"{MEDIA}/").replace("FILENAME", "/dev/dri/renderD999")
        for word in command
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode
    return done.stdout + done.stderr


def test_the_examples_scale_cascade_and_encode_in_parallel() -> None:
    programs = {re.findall(r"/usr/bin/(\w+)", " ".join(argv))[0] for argv in COMMANDS.values()}
    assert programs == {"ffmpeg", "sample_multi_transcode"}
    options = {option for argv in COMMANDS.values() for option in " ".join(argv).split()}
    assert options >= {"-cs", "-parallel_encoding", "FILENAME"}


@pytest.mark.skipif(
    not MEDIA, reason="oneVPL's argv was NOT tested: PERFDAG_TEST_MEDIA names no folder"
)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_fails_at_the_device_and_nowhere_before(name: str) -> None:
    command = COMMANDS[name]
    unknown = r"Unrecognized option|Unknown \w+coder|No such filter|Invalid input argument"
    text = said(command)
    assert re.search(AT_DEVICE, text)
    assert not re.search(unknown, text)
    worse = [re.sub(r"(?m)^-hwaccel$|-hw\b", "-nohw", word) for word in command]
    assert re.search(unknown, said(worse))

"""The oneVPL example of examples/queues.yaml against the ffmpeg of images/queue-media.

PERFDAG_TEST_FFMPEG names that ffmpeg. No GPU is needed: its options, filters and codecs are
checked, and that it fails at the device. Whether a GPU does the work is not.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

FFMPEG = os.environ.get("PERFDAG_TEST_FFMPEG", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "queues.yaml"
pytestmark = pytest.mark.skipif(
    not FFMPEG, reason="oneVPL's argv was NOT tested: PERFDAG_TEST_FFMPEG names no ffmpeg with qsv"
)


def ffmpeg(*argv: str) -> str:
    done = subprocess.run([FFMPEG, *argv], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def example() -> list[str]:
    """Return the arguments of the queue whose command uses a device."""
    queues = yaml.safe_load(EXAMPLE.read_text())["queues"]
    [command] = [queue["command"] for queue in queues if queue.get("glob") == "/dev/dri/renderD*"]
    assert command[0] == "/usr/bin/ffmpeg"
    return [str(word) for word in command[1:]]


def test_its_codecs_and_filters_are_in_the_image() -> None:
    argv = example()
    codecs = {argv[at + 1] for at, word in enumerate(argv) if word == "-c:v"}
    assert codecs == {"hevc_qsv"}
    for codec in codecs:
        assert f"Encoder {codec}" in ffmpeg("-h", f"encoder={codec}")
        assert f"Decoder {codec}" in ffmpeg("-h", f"decoder={codec}")
    name = argv[argv.index("-vf") + 1].partition("=")[0]
    assert f"Filter {name}" in ffmpeg("-h", f"filter={name}")


def test_it_fails_at_the_device_and_nowhere_before() -> None:
    argv = ["/dev/dri/renderD999" if word == "FILENAME" else word for word in example()]
    text = ffmpeg(*argv)
    assert "/dev/dri/renderD999" in text
    assert "Unrecognized option" not in text
    argv[argv.index("-hwaccel")] = "-hwaxel"
    assert "Unrecognized option 'hwaxel'" in ffmpeg(*argv)

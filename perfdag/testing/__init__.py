"""Tests of a benchmark: record what its tool prints, and damage the recording.

`record` writes what a real run prints, `load` reads it, and `check` holds the parser to the
contract: the output whole, cut, garbled, and with a decimal comma.
"""

from perfdag.testing.damage import check as check
from perfdag.testing.recording import Recording as Recording
from perfdag.testing.recording import load as load
from perfdag.testing.recording import record as record

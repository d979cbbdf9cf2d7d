"""`python -m perfdag`."""

import sys

from perfdag.cli import main

sys.exit(main())

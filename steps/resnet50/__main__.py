"""`python -m perfdag.steps.resnet50`: see `program`."""

import sys

from perfdag.steps.resnet50.program import main

sys.exit(main())

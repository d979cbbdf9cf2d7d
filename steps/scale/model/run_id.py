"""The id of a run, with which all its objects are labelled."""

import secrets
import time


def new_run() -> str:
    """Return a sortable, unique id that is valid in names of objects and Services."""
    return time.strftime("r%m%d%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)

"""The revision of what a run measures: a commit, or what the user or the CI calls it.

It is what a nightly run is most often slower by, so it is recorded beside kernel and tools.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perfdag.suite.points import Point

VARIABLES = (
    "PERFDAG_REVISION",
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "GIT_COMMIT",  # Jenkins
    "BUILDKITE_COMMIT",
    "CIRCLE_SHA1",
)
"""Variables that may have the revision, the first one that is set."""
CHANGES = " + changes"
"""The end of a commit whose work tree has changes that no commit has."""
_COMMIT = re.compile(rf"([0-9a-f]{{40}}|[0-9a-f]{{64}})({re.escape(CHANGES)})?")
_TIMEOUT = 5.0
"""Seconds for git, whose work tree may lie on a slow file system."""


@dataclass(frozen=True)
class Revision:
    """A revision: the text that names it, and the work tree that git took it from, if it did."""

    name: str
    folder: str = ""


def stated_revision() -> str:
    """Return the revision that the environment states, or an empty text."""
    texts = (os.environ.get(name, "").strip() for name in VARIABLES)
    return next(filter(None, texts), "")


def revision_of_program(program: str, path: str) -> Revision | None:
    """Return the commit of a program, or else of the folder where it runs: that of this process.

    A program that PATH finds in a work tree which ignores it was installed there: what manages
    versions of Python or Node is such a work tree.
    """
    file = program if "/" in program else shutil.which(program, path=path)
    folder = str(Path(file).parent) if file else "."
    if "/" not in program and file and _git(folder, "check-ignore", "--quiet", file) is not None:
        folder = "."
    return revision_of_folder(folder) or revision_of_folder(".")


def revision_of_folder(folder: str) -> Revision | None:
    """Return the commit of a folder, or None where git reads none."""
    commit = described_commit(folder)
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not commit or not top:
        return None
    return Revision(re.sub("-dirty$", CHANGES, commit), top)


def described_commit(folder: str) -> str | None:
    """Return the commit of a folder, with `-dirty` where files differ, or None."""
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def revisions_of_entries(points: Iterable[Point]) -> dict[str, Revision]:
    """Return the revision of each entry of a plan's points, as far as it is known.

    What the environment states holds for every entry. Otherwise it is that of the command, which
    this machine will run. Points of an entry share that of the first.
    """
    entries = {point.entry: point for point in reversed([*points])}
    stated = stated_revision()
    if stated:
        return dict.fromkeys(entries, Revision(stated))
    revisions: dict[str, Revision] = {}
    commands: dict[tuple[str, str], Revision | None] = {}
    for entry, point in entries.items():
        argv = point.params.get("argv")
        if not argv:
            continue
        path = (point.params.get("env") or {}).get("PATH", os.environ.get("PATH", ""))
        program = argv[0], path
        if program not in commands:
            commands[program] = revision_of_program(*program)
        if revision := commands[program]:
            revisions[entry] = revision
    return revisions


def short_revision(name: str) -> str:
    """Return a revision for people: of a commit the first ten digits."""
    match = _COMMIT.fullmatch(name)
    return match[1][:10] + (match[2] or "") if match else name


def commit_range(before: str, after: str) -> tuple[str, str] | None:
    """Return two revisions as commits to bisect between, or None where one is no commit."""
    commits = [_COMMIT.fullmatch(name) for name in (before, after)]
    first, last = (match[1] if match else "" for match in commits)
    return (first, last) if first and last and first != last else None


@lru_cache
def commits_between(before: str, after: str, folders: tuple[str, ...]) -> int | None:
    """Return how many commits `after` has that `before` lacks, in the first folder with both."""
    commits = "..".join(commit_range(before, after) or ())
    for folder in folders:
        count = commits and _git(folder, "rev-list", "--count", commits)
        if count:
            return int(count)
    return None


def _git(folder: str, *arguments: str) -> str | None:
    """Return what git prints about a folder, or None: there is no git, or it reads no work tree."""
    try:
        ended = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()

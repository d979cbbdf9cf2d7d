"""What a run on a cluster is given by parameters of its Workflow: the suite, and the options that change it."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import orjson

from perfdag.steps.runner.limits import refuse
from perfdag.store.base import Store
from perfdag.suite.yaml_document import BadDocument

SUITE_FILE = Path("/perfdag/suite/suite.yaml")
_FORM = (
    '''-p options="$(echo '{"settings": ["repetitions=5"], "only": ["iperf*"]}' | base64 -w0)"'''
)


@dataclass(frozen=True)
class Options:
    """What `--set` and `--only` take, each as often as it is given."""

    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def suite_text(environment: Mapping[str, str], store: Store, mounted: Path = SUITE_FILE) -> str:
    """The suite as it was given: base64, a key of the store, or a ConfigMap. Raises BadDocument, StoreError."""
    encoded, key = environment.get("PERFDAG_SUITE", ""), environment.get("PERFDAG_URL", "")
    if encoded:
        try:
            return _decoded(encoded).decode()
        except ValueError as error:
            raise refuse(
                f'the parameter suite is not base64 of a suite file ({error}); give -p suite="$(base64 -w0 suite.yaml)"'
            ) from None
    if key:
        return store.get(key.removeprefix(f"{store.root}/")).decode()
    if mounted.is_file():
        return mounted.read_text()
    raise refuse(
        "no suite: give -p suite=BASE64, -p configmap=NAME (with a key suite.yaml) or -p url=KEY"
    )


def options(environment: Mapping[str, str]) -> Options:
    """The parameter options: base64 of a JSON object with lists of texts. Raises BadDocument."""
    encoded = environment.get("PERFDAG_OPTIONS", "")
    if not encoded:
        return Options()
    try:
        given = orjson.loads(_decoded(encoded))
    except ValueError as error:
        raise _refused(f"it is not base64 of JSON ({error})") from None
    if not isinstance(given, dict):
        raise _refused("it is no JSON object")
    known = [each.name for each in fields(Options)]
    for name, value in given.items():
        if name not in known:
            raise _refused(f"{name} is not one of its keys: {', '.join(known)}")
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _refused(f"{name} is no list of texts")
    return Options(**{name: tuple(value) for name, value in given.items()})


def _decoded(text: str) -> bytes:
    """Raises ValueError (binascii.Error is one)."""
    return base64.b64decode("".join(text.split()), validate=True)


def _refused(why: str) -> BadDocument:
    return refuse(
        f"the parameter options holds what --set (as settings) and --only take, and {why}; give {_FORM}"
    )

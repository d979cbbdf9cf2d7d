"""The parameters of a Workflow that make its plan: the suite, and the options that change it."""

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
    """The values of `--set` and of `--only`."""

    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def suite_text(environment: Mapping[str, str], store: Store, mounted: Path = SUITE_FILE) -> str:
    """Return the text of the suite: from base64, from a key of the store, or from a ConfigMap.

    Raises BadDocument, StoreError.
    """
    encoded, key = environment.get("PERFDAG_SUITE", ""), environment.get("PERFDAG_URL", "")
    if encoded:
        try:
            return _decode(encoded).decode()
        except ValueError as error:
            raise refuse(
                f"the parameter suite is not base64 of a suite file ({error}); "
                'give -p suite="$(base64 -w0 suite.yaml)"'
            ) from None
    if key:
        return store.get(key.removeprefix(f"{store.root}/")).decode()
    if mounted.is_file():
        return mounted.read_text()
    raise refuse(
        "no suite: give -p suite=BASE64, -p configmap=NAME (with a key suite.yaml) or -p url=KEY"
    )


def options(environment: Mapping[str, str]) -> Options:
    """Return the parameter options: base64 of a JSON object with lists of texts.

    Raises BadDocument.
    """
    encoded = environment.get("PERFDAG_OPTIONS", "")
    if not encoded:
        return Options()
    try:
        document = orjson.loads(_decode(encoded))
    except ValueError as error:
        raise _refuse_options(f"it is not base64 of JSON ({error})") from None
    if not isinstance(document, dict):
        raise _refuse_options("it is no JSON object")
    known = [option.name for option in fields(Options)]
    for name, value in document.items():
        if name not in known:
            raise _refuse_options(f"{name} is not one of its keys: {', '.join(known)}")
        if not isinstance(value, list) or any(
            not isinstance(text, str) or "\0" in text for text in value
        ):
            raise _refuse_options(f"{name} is no list of texts")
    return Options(**{name: tuple(value) for name, value in document.items()})


def _decode(text: str) -> bytes:
    """Return the bytes of a base64 text with line breaks. Raises ValueError."""
    return base64.b64decode("".join(text.split()), validate=True)


def _refuse_options(why: str) -> BadDocument:
    return refuse(
        "the parameter options holds the values of --set (as settings) and of --only, "
        f"and {why}; give {_FORM}"
    )

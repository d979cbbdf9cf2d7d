"""Keys of S3 as `aws configure` keeps them: a profile of ~/.aws/credentials and ~/.aws/config."""

import os
from configparser import Error, MissingSectionHeaderError, RawConfigParser
from pathlib import Path

_KEYS = ("aws_access_key_id", "aws_secret_access_key")
_TAKEN = (*_KEYS, "aws_session_token", "region", "endpoint_url")
_INSTEAD = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class ElsewhereError(ValueError):
    """The profile gets its keys by SSO, a role or a program; `settings` are its region and endpoint_url."""

    def __init__(self, reason: str, settings: dict[str, str]) -> None:
        super().__init__(reason)
        self.settings = settings


def read(name: str) -> dict[str, str]:
    """The keys, `region` and `endpoint_url` that a profile holds; where both files have one, that of the credentials file.

    A profile `default` may be absent, or hold no keys. Raises ValueError where another one is, where the keys come from elsewhere
    (ElsewhereError) and where a file cannot be read.
    """
    made = _section(
        "AWS_CONFIG_FILE", "config", f"profile {name}", *(["default"] if name == "default" else [])
    )
    kept = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    if all(kept.get(key) for key in _KEYS):  # a token belongs to the keys beside it
        made.pop("aws_session_token", None)
    made |= kept
    whole = all(made.get(key) for key in _KEYS)
    # a role goes before keys, which are then those that may take it
    foreign = [
        key
        for key in made
        if key == "role_arn" or (not whole and key.startswith(("sso_", "credential_process")))
    ]
    if foreign:
        settings = {key: made[key] for key in ("region", "endpoint_url") if made.get(key)}
        reason = f"the AWS profile {name} has its keys by {foreign[0]}; pip install boto3, which follows it, or {_INSTEAD}"
        raise ElsewhereError(reason, settings)
    if not whole and name != "default":
        raise ValueError(
            f"the AWS profile {name} has no {' and '.join(_KEYS)} in ~/.aws/credentials or ~/.aws/config; {_INSTEAD}"
        )
    return {key: made[key] for key in _TAKEN if made.get(key)}


def _section(variable: str, file: str, *sections: str) -> dict[str, str]:
    """The first of these sections that the file has."""
    path = Path(os.environ.get(variable) or f"~/.aws/{file}").expanduser()
    parser = RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({' '.join(str(error).split())}); mend it, or {_INSTEAD}"
        ) from None
    except Error as error:  # its words quote the line, which may hold a secret
        numbers = (
            [error.lineno]
            if isinstance(error, MissingSectionHeaderError)
            else [at for at, _ in getattr(error, "errors", [])]
        )
        where = f", line {numbers[0]}" if numbers else ""
        raise ValueError(
            f"{path}{where} is no setting and no [section]; mend it, or {_INSTEAD}"
        ) from None
    return next((dict(parser[each]) for each in sections if parser.has_section(each)), {})

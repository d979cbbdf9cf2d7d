"""Keys of S3 as `aws configure` keeps them: a profile of ~/.aws/credentials and ~/.aws/config."""

import os
from configparser import Error, RawConfigParser
from pathlib import Path

_KEYS = ("aws_access_key_id", "aws_secret_access_key")
_TAKEN = (*_KEYS, "aws_session_token", "region", "endpoint_url")
_INSTEAD = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class ElsewhereError(ValueError):
    """The profile gets its keys by SSO, a role or a program."""


def read(name: str) -> dict[str, str]:
    """The keys, `region` and `endpoint_url` that a profile holds; where both files have one, that of the credentials file.

    A profile `default` may be absent, or hold no keys. Raises ValueError where another one is, where the keys come from elsewhere
    (ElsewhereError) and where a file cannot be read.
    """
    made = _section("AWS_CONFIG_FILE", "config", "default" if name == "default" else f"profile {name}")
    made |= _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    whole = all(made.get(key) for key in _KEYS)
    # a role goes before keys, which are then those that may take it
    foreign = [key for key in made if key == "role_arn" or (not whole and key.startswith(("sso_", "credential_process")))]
    if foreign:
        raise ElsewhereError(f"the AWS profile {name} has its keys by {foreign[0]}; pip install boto3, which follows it, or {_INSTEAD}")
    if not whole and name != "default":
        raise ValueError(f"the AWS profile {name} has no {' and '.join(_KEYS)} in ~/.aws/credentials or ~/.aws/config; {_INSTEAD}")
    return {key: made[key] for key in _TAKEN if made.get(key)}


def _section(variable: str, file: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or f"{os.environ.get('HOME', '')}/.aws/{file}")
    parser = RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, Error) as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}); mend it, or {_INSTEAD}") from None
    return dict(parser[section]) if parser.has_section(section) else {}

"""The JSON schema of suite files, which editors use (`perfdag plan --schema`)."""

from typing import Any

from perfdag.benchmark import registry
from perfdag.suite.model import Suite


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of suite files, with the params of all benchmarks."""
    schema = Suite.model_json_schema()
    definitions = schema["$defs"]
    rules = []
    for name in registry.working():
        params = registry.get(name).Params.model_json_schema(
            ref_template=f"#/$defs/{name}-{{model}}"
        )
        for inner, definition in params.pop("$defs", {}).items():
            definitions[f"{name}-{inner}"] = definition
        params.pop("required", None)  # a permutation may give it
        definitions[f"{name}-params"] = params
        chosen = {"properties": {"benchmark": {"const": name}}, "required": ["benchmark"]}
        rules.append(
            {"if": chosen, "then": {"properties": {"params": {"$ref": f"#/$defs/{name}-params"}}}}
        )
    definitions["Entry"]["allOf"] = rules
    definitions["Entry"]["properties"]["benchmark"]["enum"] = list(registry.working())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://perfdag.dev/suite.schema.json",
        **schema,
    }

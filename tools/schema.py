"""The JSON Schema of results.json and the page that explains the format, made from the models in twoprong.results.

python tools/schema.py            rewrite src/twoprong/results/*.schema.json and docs/results-format.md
python tools/schema.py --check    only compare: exit code 1 where they differ
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from twoprong.results.files import KINDS

INTRODUCTION = """# results.json

What `twoprong evaluate` ([EvaluationResults](#evaluationresults)) and `twoprong reproduce`
([ReproductionResults](#reproductionresults)) write, key by key. The same as JSON Schema comes with the package:
{schemas}.
`python tools/schema.py` makes all three from the models in `twoprong.results`. Reading a file from Python:

    from pathlib import Path
    from twoprong.results import read_results

    results = read_results(Path("DIR/results.json"))  # checked, or a DataError that names the file
    results.worst_case["defense"].per_batch

A *subject* is what is compared: `defense`, `bare`, `denoiser`, `reject`, `magnet`, `against` ([evaluation](evaluate.md)).
"""


class Untitled(GenerateJsonSchema):
    """Without the titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of every kind of results."""
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return {kind: dialect | model.model_json_schema(schema_generator=Untitled) for kind, model in KINDS.items()}


def files() -> dict[str, str]:
    """Every file that is made here, by its place in the repository."""
    made = {_place(kind): json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for kind, schema in schemas().items()}
    return made | {"docs/results-format.md": page(schemas())}


def page(by_kind: dict[str, dict[str, Any]]) -> str:
    """The format as Markdown: a table for every part, each part once."""
    links = ", ".join(f"`{_place(kind)}`" for kind in by_kind)
    blocks, seen = [INTRODUCTION.format(schemas=links)], set[str]()
    for schema in by_kind.values():
        parts = {schema["title"]: schema} | {name: schema["$defs"][name] for name in _reached(schema)}
        for number, (name, part) in enumerate(parts.items()):
            if name not in seen:
                blocks.append(_table(name, part, schema["$defs"], "##" if number == 0 else "###"))
            seen.add(name)
    return "\n".join(blocks)


def _place(kind: str) -> str:
    return f"src/twoprong/results/{kind}.schema.json"


def _table(name: str, part: dict[str, Any], others: dict[str, Any], level: str) -> str:
    def meaning(field: dict[str, Any]) -> str:  # the generator leaves out what the part itself says
        return str(field.get("description") or others[_target(field)]["description"])

    lines = [f"{level} {name}", part["description"]]
    if fields := part["properties"]:
        lines += ["", "| key | value | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {_type(field)} | {meaning(field)} |" for key, field in fields.items()]
    return "\n".join(lines) + "\n"


def _target(field: dict[str, Any]) -> str:
    return str(field["$ref"].rpartition("/")[2])


def _type(field: dict[str, Any]) -> str:
    """A value's type in words; parts are links."""
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "$ref" in field:
        return f"[{_target(field)}](#{_target(field).lower()})"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return (
            f"[{', '.join(map(_type, field['prefixItems']))}]"
            if "prefixItems" in field
            else f"list of {_several(_type(field['items']))}"
        )
    if field["type"] == "object":
        inner = field.get("additionalProperties")
        return f"name → {_type(inner)}" if isinstance(inner, dict) else "object"
    return {"string": "text", "boolean": "true or false"}.get(field["type"], field["type"])


def _several(word: str) -> str:
    return f"{word}s" if word.isalpha() else word


def _reached(schema: dict[str, Any]) -> Iterator[str]:
    """The parts that a schema is made of, in the order in which a reader comes to them."""
    waiting, seen = list(_refs(schema["properties"])), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name not in seen:
            seen.add(name)
            yield name
            waiting += _refs(schema["$defs"][name])


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield _target(node)
        for value in node.values():
            yield from _refs(value)
    if isinstance(node, list):
        for value in node:
            yield from _refs(value)


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(description="The JSON Schema of results.json, and the page that explains it.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(arguments).check
    made = files()
    differ = [
        place
        for place, text in made.items()
        if not (root / place).is_file() or (root / place).read_text(encoding="utf-8") != text
    ]
    for place in differ:
        if not check:
            (root / place).write_text(made[place], encoding="utf-8")
        print(f"{place}: differs from twoprong.results; run tools/schema.py" if check else f"{place}: rewritten")
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())

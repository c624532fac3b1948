"""What every part of a results.json has in common: it is frozen, refuses unknown keys, and is written as it was read."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

# Nothing is converted: a text is no number, and an integer stays one, so what is read is written again to the byte.
Number = Annotated[StrictInt | StrictFloat, WithJsonSchema({"type": "number"})]
Whole = StrictInt
Text = StrictStr
Flag = StrictBool
Interval = tuple[Number, Number]  # low and high, 95 %


class Part(BaseModel):
    """The base of all parts. The descriptions of its fields go to the JSON Schema and to docs/."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, value: Any, handler: ModelWrapValidatorHandler["Part"]) -> "Part":
        """Keys are written in the order they were given in, so that reading and writing changes no file."""
        made = handler(value)
        if isinstance(value, Mapping):
            fields = dict(made.__dict__)
            made.__dict__.clear()
            made.__dict__.update({key: fields[key] for key in value} | fields)
        return made

    def as_dict(self) -> dict[str, Any]:
        """The part as plain values, as it stands in the file: a key that was not given is not there."""
        return self.model_dump(exclude_unset=True)


class Origin(Part):
    """The source and the libraries that an earlier part of a run was made with."""

    commit: Text | None = Field(description="Commit of the source tree, or null where it is not known.")
    twoprong: Text = Field(description="Version of this package.")
    torch: Text = Field(description="Version of PyTorch.")


class Provenance(Part):
    """What a result was made with."""

    twoprong: Text = Field(description="Version of this package.")
    torch: Text = Field(description="Version of PyTorch.")
    python: Text = Field(description="Version of Python.")
    commit: Text | None = Field(
        description="Commit of the source tree, `-dirty` for changes; outside a checkout `TWOPRONG_COMMIT`, or null."
    )
    platform: Text = Field(description="Operating system.")
    device: Text = Field(description="Processor or GPU.")
    threads: Whole = Field(description="Threads that PyTorch used.")
    resumed_from: list[Origin] = Field(
        default=[],
        description="What pieces were made with that this run took from earlier ones, if by another source or other "
        "libraries; missing where there are none.",
    )

    @property
    def mixed(self) -> str:
        """The commits of the pieces that were not made by this one; nothing where there are none."""
        return ", ".join(dict.fromkeys((origin.commit or "unknown")[:18] for origin in self.resumed_from))

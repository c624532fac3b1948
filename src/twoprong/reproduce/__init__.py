"""The paper's tables, measured here beside the numbers printed there."""

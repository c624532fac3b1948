"""The settings of the queue that forms batches."""

from pydantic import model_validator

from twoprong.config import Count, NotNegative, Positive, Settings


class BatchSettings(Settings):
    """How batches are formed. Times are in seconds.

    `deadline` is the longest that an image waits for others. A batch of fewer than `least` images is not tested; the
    service keeps `least` and `max_batch` inside what the bundle is calibrated for. `max_per_key` is how many images of one
    key a batch of several keys may have. `max_items` and `max_bytes` bound everything that is accepted and not yet answered,
    `max_items_per_key` what one key has of it. A batch that takes longer than `timeout` fails. Answers leave no earlier
    than `pace` after their batch was closed: above the time of the slower route, time does not tell the route.
    """

    max_batch: Count = 100
    least: Count = 2
    deadline: Positive = 0.25
    max_per_key: Count = 10
    max_items: Count = 2000
    max_items_per_key: Count = 2000
    max_bytes: Count = 256 * 2**20
    timeout: Positive = 30.0
    pace: NotNegative = 0.0

    @model_validator(mode="after")
    def _ordered(self) -> "BatchSettings":
        for small, large in (("least", "max_batch"), ("max_per_key", "max_batch"), ("max_batch", "max_items")):
            if getattr(self, small) > getattr(self, large):
                raise ValueError(f"{small}: expected at most {large} = {getattr(self, large)}, got {getattr(self, small)}")
        return self

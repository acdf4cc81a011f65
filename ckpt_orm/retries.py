"""AGAIN: how often an operation is run whose failure may pass, and when."""

from __future__ import annotations

from typing import Any

from tenacity import (
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)
from tenacity.stop import stop_base

from ckpt_orm.failures import passes
from ckpt_orm.reasons import may_be_refused


class StopIfLikelyRefused(stop_base):
    """Stops what may pass, and most likely will not."""

    def __call__(self, retry_state: RetryCallState) -> bool:
        """Whether it has run three times, of which the first one is not counted here."""
        error = retry_state.outcome.exception() if retry_state.outcome else None
        return retry_state.attempt_number >= 2 and may_be_refused(error)


#: How a failure that passes is retried: up to 5 runs after the first, some 3 seconds in all.
RETRY: dict[str, Any] = {
    "stop": stop_after_attempt(5) | stop_after_delay(3) | StopIfLikelyRefused(),
    "wait": wait_random_exponential(multiplier=0.1, max=2),
    "retry": retry_if_exception(lambda error: passes(error)),
    "reraise": True,
}

#: Seconds between the first run and these. Meanwhile those who stand in line behind it are told
#: what it met, and do not meet it one after the other.
PAUSE = 0.02

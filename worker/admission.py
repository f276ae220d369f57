"""When waiting prompts are prefilled, and when decode makes room for them. Used by the scheduler of one model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from denizen.worker.errors import ConfigError


@dataclass(frozen=True)
class Admission:
    """The numbers of the policy; without any, prompts are prefilled as they come and decode never waits.

    A prefill step costs a fixed part however few tokens it has, and an empty row costs its share of every decode step.
    Where many rows run, short prompts that arrive therefore *gather*: until there is one for every ``gather_rows``
    running rows, or their tokens make a step of ``gather_tokens``, or ``gather_steps`` iterations have passed.

    In a *burst*, decode steps of few rows would slow down the prefill of many. So decode waits for prefill steps that
    are under way while the short prompts that could begin at once fill a whole step more, and there is one for every
    ``burst_share`` rows that decode. It waits for ``burst_steps`` in a row at most, and every decode step allows for
    one more: where such prompts never cease to come, the two walks take turns.
    """

    gather_steps: int = 0
    gather_rows: int = 32
    gather_tokens: int = 512
    burst_share: int = 0
    burst_steps: int = 16

    def changed(self, text: str) -> Admission:
        """With the numbers in ``text``, ``NAME=NUMBER,…``. Raises :class:`ConfigError`."""
        names = [field.name for field in fields(self)]
        changes = {}
        for item in filter(None, text.split(",")):
            name, _, number = item.partition("=")
            if name not in names or not number.isdecimal() or (name == "gather_rows" and int(number) < 1):
                raise ConfigError(
                    f"DENIZEN_ADMISSION: '{item}' is not one of {', '.join(names)} with a number, as in name=8"
                )
            changes[name] = int(number)
        return replace(self, **changes)


#: On a GPU: prompts wait for each other for some 20 ms at most.
ON_GPU = Admission(gather_steps=8, burst_share=16)

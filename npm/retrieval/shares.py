"""The share of a stage that one of several jobs takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from npm.errors import SettingError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Share:
    """Share `number` of `count`, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """The share that `text` names; raises SettingError.

        >>> Share.parse("3/20")
        Share(number=3, count=20)
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise SettingError(
                f"{text!r} is no share",
                expected="shard=i/n, with i from 1 to n, such as shard=3/20",
                got=text,
                where="shard",
                fix="give the job's number, counted from 1, and the number of jobs",
            )
        return cls(int(found[1]), int(found[2]))

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """The consecutive items of this share; all shares together have each item once.

        >>> [Share(number, 3).of("abcd") for number in (1, 2, 3)]
        ['a', 'b', 'cd']
        """
        first, stop = ((self.number - 1 + side) * len(items) // self.count for side in (0, 1))
        return items[first:stop]

"""States of feeds, as Feed.state_dict() makes them: read without believing them.

A state comes from a file. What it says is used only if it has the right types, agrees with itself
and is of this very run, group and rank; else it is refused with a sentence.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest

VERSION = 1
# Claims have 40 bits for the number of a batch (shm/include/ringfeed/shm/claim.h).
SEQ_MAX = 2**40 - 1
_HELD_MAX = 1 << 16
_TEXTS = ("feed", "feed_id", "group", "output")
_NUMBERS = ("rank", "world", "last", "next")


@dataclass(frozen=True)
class State:
    """What a state says.

    Attributes:
        last: Number of the batch that was handed out last, 0 before the first.
        next: Of the one that would have come next.
        held: Those that were in somebody's hands.
        is_whole: It is, field for field, what state_dict() made.
    """

    last: int
    next: int
    held: frozenset[int]
    is_whole: bool


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The same with a checksum, by which it is known to be whole."""
    return {**state, "check": _check(state)}


def _check(state: Mapping[str, Any]) -> str:
    known = {key: state[key] for key in ("version", *_TEXTS, *_NUMBERS)}
    text = json.dumps({**known, "held": list(state["held"])}, sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"


def number(state: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
    """A whole number of a state.

    Raises:
        InvalidRequest: It has none, or one that cannot be.
    """
    value = state.get(key)
    if type(value) is not int or not least <= value <= SEQ_MAX:
        given = f"{key} {_shown(value)}" if key in state else f"no {key}"
        raise InvalidRequest(
            f"{where}: the state has {given} instead of a whole number from {least} to "
            f"{SEQ_MAX}: it is damaged; use another one"
        )
    return value


def read(state: Mapping[str, Any], own: Mapping[str, Any], where: str, elsewhere: str) -> State:
    """What the state says, if it is of this place.

    Args:
        state: Anything.
        own: This member's own, with the keys of state_dict().
        where: Begins every message.
        elsewhere: Ends those that say that the state is of another place: what to do.
    Raises:
        InvalidRequest: It is of another place, or no state.
    """
    if not isinstance(state, Mapping):
        raise InvalidRequest(
            f"{where}: a state is what state_dict() returned, not a {type(state).__name__}"
        )
    if type(state.get("version")) is not int or state["version"] != VERSION:
        raise InvalidRequest(
            f"{where}: the state has version {_shown(state.get('version'))}, this ringfeed reads "
            f"{VERSION}"
        )
    for key in ("feed", "group", "output"):
        other = state.get(key, "")
        if other != own[key]:
            other = _shown(other) if other else "none"
            raise InvalidRequest(f"{where}: the state belongs to {key} {other}: {elsewhere}")
    if state.get("feed_id") != own["feed_id"]:
        raise InvalidRequest(
            f"{where}: the state belongs to another run of this feed, in which batches have other "
            f"numbers and another order: {elsewhere}"
        )
    rank, world = number(state, "rank", where), number(state, "world", where)
    if world != own["world"] or rank >= max(world, 1):
        raise InvalidRequest(
            f"{where}: the state belongs to rank {rank} of {world}, this is rank {own['rank']} of "
            f"{own['world']}: {elsewhere}"
        )
    last, following = number(state, "last", where), number(state, "next", where, 1)
    if (last and following != last + world) or (following - 1) % world != rank % world:
        raise InvalidRequest(
            f"{where}: the state has last {last} and next {following}, which is impossible for "
            "rank "
            f"{rank} of {world}: it is damaged; use another one"
        )
    held = state.get("held")
    fits = isinstance(held, (list, tuple)) and len(held) <= _HELD_MAX
    if not fits or any(type(seq) is not int or not 0 < seq <= SEQ_MAX for seq in held or ()):
        raise InvalidRequest(
            f"{where}: the state has held {_shown(held)} instead of a list of batch numbers: it "
            "is damaged; use another one"
        )
    whole = "check" in state and state["check"] == _check({"output": "", **state})
    # Frameworks save the state of one rank for all. Ranks train in step, so that names a round.
    ahead = own["rank"] - rank
    if ahead and not whole:
        raise InvalidRequest(
            f"{where}: the state belongs to rank {rank}, this is rank {own['rank']}, and the state "
            f"differs from what state_dict() made: {elsewhere}"
        )
    return State(
        last + ahead if last else 0,
        following + ahead,
        frozenset(seq + ahead for seq in held or ()),
        whole,
    )


def _shown(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and len(value) <= 64:
        return value
    text = ascii(value)
    return text if len(text) <= 64 else text[:61] + "..."

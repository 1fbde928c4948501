"""What surrounds a result: where the hooks come from, and what the lane forced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.compare.trees import ABSENT, Difference, Kind, text, tree_differences
from harness.observe.codec import canonical_bytes
from harness.observe.observation import EncodedMask, Observation

PROVENANCE = "provenance."
"""Start of the path of what says where a hook comes from."""

Ranks = Sequence[Observation]


Named = Mapping[str, str]


def hooks(ranks: Ranks) -> dict[str, str]:
    """Name of a hook → where it comes from."""
    return {name: place for rank in ranks for name, place in rank.provenance.items()}


def sources(old: Ranks, new: Ranks) -> tuple[Named, Named]:
    """Where all that each side runs comes from: hooks, functions of another package, and packages that no stack pins.

    Of packages only those that both sides have imported: what one alone imports is told once, by the probe
    `surroundings`, rather than of every case.
    """
    ours, theirs = _packages(old), _packages(new)
    both = ours.keys() & theirs.keys()
    return tuple(  # type: ignore[return-value]
        hooks(ranks)
        | {f"patched {place}": home for rank in ranks for place, home in rank.environment.get("patched", {}).items()}
        | {f"package {name}": found[name] for name in both}
        for ranks, found in ((old, ours), (new, theirs))
    )


def _packages(ranks: Ranks) -> dict[str, str]:
    """Imported package → version, without those that the stack pins."""
    return {
        name: version
        for rank in ranks
        for name, version in rank.environment.get("packages", {}).items()
        if name not in rank.environment.get("versions", {})
    }


def comparable(ours: Named, theirs: Named, raised: bool) -> tuple[Named, Named]:
    """Both sides' entries; where a side raised, only those that both had come to."""
    if not raised:
        return ours, theirs
    both = ours.keys() & theirs.keys()
    return {name: ours[name] for name in both}, {name: theirs[name] for name in both}


def moved_hooks(ours: Named, theirs: Named, raised: bool) -> list[Difference]:
    """Hooks that come from another module on the new side."""
    found = tree_differences(*(dict(side) for side in comparable(ours, theirs, raised)))
    return [replace(item, path=f"{PROVENANCE}{item.path}") for item in found]


def moved(old: Ranks, new: Ranks, *, one_layout: bool = True) -> list[Difference]:
    """Hooks that come from another module on the new side, and what the harness put in or set on one side only.

    Args:
        one_layout: False for sides in two layouts, one of which may need something in its place that the other doesn't.
    """
    raised = any(rank.exception for rank in (*old, *new))
    put_in = comparable(_interventions(old), _interventions(new), raised)
    found = tree_differences(*(dict(side) for side in put_in))
    differing = [item for item in found if one_layout or item.kind == "changed"]
    return moved_hooks(*sources(old, new), raised) + differing


def _interventions(ranks: Ranks) -> dict[str, str]:
    found: dict[str, str] = {}
    for rank in ranks:
        for entry in rank.environment.get("stand_ins", ()):
            found[f"stand_in {entry['replaced']}"] = entry["by"]
        for name, value in rank.environment.get("set_by_hand", {}).items():
            found[f"set_by_hand {name}"] = canonical_bytes(value).decode()
    return found


def _masks(side: Ranks, ranks: int) -> dict[tuple[int, str, int], EncodedMask]:
    """Masks by rank, field, and how often the field had been forced before.

    Where the other side has more ranks, this one's stand for them in turn.
    """
    found: dict[tuple[int, str, int], EncodedMask] = {}
    for number in range(ranks if side else 0):
        for mask in side[number % len(side)].masks:
            occurrence = sum((number, mask.field) == key[:2] for key in found)
            found[(number, mask.field, occurrence)] = mask
    return found


def forced_differently(old: Ranks, new: Ranks) -> str | None:
    """A field that the lane forced to another value on each side: then it compares two different things."""
    ranks = max(len(old), len(new))
    ours, theirs = _masks(old, ranks), _masks(new, ranks)
    for key in sorted(ours.keys() & theirs.keys()):
        if canonical_bytes(ours[key].forced) != canonical_bytes(theirs[key].forced):
            forced = f"{text(ours[key].forced)} on old and {text(theirs[key].forced)} on new"
            return f"the lane forces {key[1]} to {forced}"
    return None


def masked_differences(old: Ranks, new: Ranks) -> list[Difference]:
    """Fields the lane forces and in which the sides differ, or that one side alone has and had otherwise."""
    ranks = max(len(old), len(new))
    ours, theirs = _masks(old, ranks), _masks(new, ranks)
    found = [_masked(key[1], ours.get(key), theirs.get(key)) for key in sorted({*ours, *theirs})]
    return list(dict.fromkeys(difference for difference in found if difference))


def _masked(name: str, old: EncodedMask | None, new: EncodedMask | None) -> Difference | None:
    if old and new:
        same = canonical_bytes(old.own) == canonical_bytes(new.own)
        return None if same else Difference(name, "changed", text(old.own), text(new.own))
    mask = old or new
    if mask is None or canonical_bytes(mask.own) == canonical_bytes(mask.forced):
        return None
    kind: Kind = "removed" if old else "added"
    return Difference(name, kind, text(mask.own) if old else ABSENT, text(mask.own) if new else ABSENT)

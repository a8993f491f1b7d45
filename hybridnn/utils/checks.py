"""Checks of values that a user gives: types that say what is allowed, in a settings file and in Python alike.

pydantic checks the types of the sections of a file, and `require_fields` those of other dataclasses. Each error names
the setting, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, signature
from math import isfinite
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

Called = TypeVar("Called", bound=Callable[..., Any])


class Range(NamedTuple):
    """Annotation of numbers: the ends of their range."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        """The schema of `source` with these limits."""
        limits = zip(("gt", "ge", "lt", "le"), self, strict=True)
        return handler(source) | {name: limit for name, limit in limits if limit is not None}


class OneOf(NamedTuple):
    """Annotation of text that is one of `choices`."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        """The schema of a `Literal`, which takes capitals as they are typed."""
        spelled = {"type": "no-info", "function": lambda value: as_spelled(value, self.choices)}
        return {
            "type": "function-before",
            "function": spelled,
            "schema": {"type": "literal", "expected": [*self.choices]},
        }


OTHER_NAMES = {"cuda": "gpu"}
"""Names of choices that other programs have."""


def as_spelled(value: object, choices: Iterable[str]) -> object:
    """The one of `choices` that a text is but for capitals, or by another name; any other value as it is."""
    if not isinstance(value, str):
        return value
    name = value.lower()
    names = {choice.lower(): choice for choice in choices}
    return value if value in names.values() else names.get(OTHER_NAMES.get(name, name), value)


REFUSED = "refused"  # type of the errors of `refused`


def refused(key: str, value: object, allowed: str) -> PydanticCustomError:
    """Error for validators of pydantic; `key` is relative to the section that is validated."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError(REFUSED, "{allowed}", {"key": key, "value": value, "allowed": allowed})


class Checked(NamedTuple):
    """Annotation of a value that `check` returns as it is used, or refuses by a `SettingError`."""

    check: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        """The schema of a value that only `check` validates."""

        def validate(value: Any) -> Any:
            try:
                return self.check(value)
            except SettingError as error:
                raise refused("", value, error.allowed) from None

        return {"type": "function-plain", "function": {"type": "no-info", "function": validate}}


def _auto_or_boolean(value: object) -> object:
    if not isinstance(value, bool) and value != "auto":
        raise SettingError("", value, "must be 'auto', true or false")
    return value


AutoOrBool = Annotated[bool | str, Checked(_auto_or_boolean)]
Count = Annotated[int, Range(at_least=1)]
Seed = Annotated[int, Range(at_least=0, below=2**63)]
Positive = Annotated[float, Range(above=0)]
AtLeastZero = Annotated[float, Range(at_least=0)]
BelowOne = Annotated[float, Range(at_least=0, below=1)]
Fraction = Annotated[float, Range(at_least=0, at_most=1)]


def require_fields(section: str, instance: Any, names: Collection[str] = ()) -> None:
    """Refuse, by a `SettingError`, a dataclass with a value that the type of its field does not allow.

    Parameters
    ----------
    section : str
        Section of the settings whose keys are the fields; empty for arguments that no settings file has.
    names : collection of str
        The fields to check; by default all.
    """
    kind: Any = type(instance)
    hints = _type_hints(kind)
    for key, item in fields_by_key(kind).items():
        if names and item.name not in names:
            continue
        require_type(f"{section}.{key}".removeprefix("."), getattr(instance, item.name), hints[item.name])


def fields_by_key(kind: Any) -> dict[str, Field[Any]]:
    """The fields of a dataclass by their keys in a settings file: the name, or ``alias`` in a field's metadata."""
    return {item.metadata.get("alias", item.name): item for item in fields(kind)}


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def require_type(name: str, value: Any, kind: Any) -> None:
    """Refuse, by a `SettingError`, a value that is not of a type.

    Types are bool, float, float and int with a `Range`, `OneOf`, `Checked`, tuples of such types, and one of them or
    None.
    """
    if type(None) in get_args(kind):
        if value is None:
            return
        kind = next(other for other in get_args(kind) if other is not type(None))
    kind, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if limits and isinstance(limits[0], Checked):
        try:
            limits[0].check(value)
        except SettingError as error:
            if error.setting:
                raise
            raise SettingError(name, value, error.allowed) from None
    elif get_origin(kind) is tuple:
        _require_tuple(name, value, get_args(kind))
    elif kind is bool:
        if not isinstance(value, bool):
            raise SettingError(name, value, "must be true or false")
    elif kind is float:
        require_number(name, value, **(limits[0] if limits else Range())._asdict())
    elif kind is int:
        require_whole(name, value, limits[0].at_least)
    else:
        require_choice(name, value, limits[0].choices)


def _require_tuple(name: str, values: Sequence[Any], kinds: tuple[Any, ...]) -> None:
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(values) != len(kinds):
        raise SettingError(name, list(values), f"must be {len(kinds)} numbers")
    for index, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        require_type(f"{name}[{index}]", value, kind)


def require_whole(name: str, value: object, minimum: int, below: int = 2**63) -> None:
    """Refuse, by a `SettingError`, a value that is not an integer with ``minimum <= value < below``."""
    if isinstance(value, Integral) and below == 2**63 <= int(value):
        raise SettingError(name, value, f"must be at most {below - 1:,}")
    if not isinstance(value, Integral) or isinstance(value, bool) or not minimum <= int(value) < below:
        allowed = f", {minimum} or more" if below == 2**63 else f" from {minimum} to {below - 1:,}"
        raise SettingError(name, value, f"a whole number{allowed}")


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    allowed: str = "",
) -> None:
    """Refuse, by a `SettingError`, a value that is not a finite number in the range.

    Parameters
    ----------
    allowed : str
        What is allowed, for the message; by default the end of the range that the value exceeds.
    """
    limits = (above, gt, "greater than"), (at_least, ge, "at least"), (below, lt, "less than"), (at_most, le, "at most")
    if not isinstance(value, Real) or isinstance(value, bool):
        raise SettingError(name, value, allowed or "must be a number")
    if not isfinite(number := float(value)):
        raise SettingError(name, value, allowed or "must be a finite number")
    for limit, fits, what in limits:
        if limit is not None and not fits(number, limit):
            raise SettingError(name, value, allowed or f"must be {what} {limit:g}")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse, by a `SettingError`, a value that is not one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise SettingError(name, value, must_be_one_of(choices))


def must_be_one_of(choices: Iterable[str]) -> str:
    """``must be 'a', 'b' or 'c'``, for messages."""
    *others, last = map(repr, choices)
    return f"must be {', '.join(others)} or {last}" if others else f"must be {last}"


def with_advice(advice: Mapping[str, str], more: Collection[str] = ()) -> Callable[[Called], Called]:
    """Decorator of a function or of a dataclass, which refuses unknown and missing keywords by a `SettingError`.

    Parameters
    ----------
    advice : mapping
        What to write in place of keywords that are likely to be tried.
    more : collection of str
        Keywords that it takes beside those in its signature.
    """

    def decorate(target: Called) -> Called:
        called: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        _, *taken = signature(called).parameters.values()  # after `self`
        needed = [item.name for item in taken if (item.kind, item.default) == (Parameter.KEYWORD_ONLY, Parameter.empty)]
        known = [*(item.name for item in taken if item.kind != Parameter.VAR_KEYWORD), *more]

        @wraps(called)
        def checked(*values: Any, **given: Any) -> Any:
            name = type(values[0]).__name__ if called.__name__ == "__init__" else target.__qualname__
            for keyword in (keyword for keyword in given if keyword not in known):
                hint = advice.get(keyword) or nearest(keyword, known) or f"it takes {', '.join(known)}"
                raise SettingError(keyword, given[keyword], hint, f"{name} takes no argument {keyword!r}: {hint}")
            for keyword in needed:
                if keyword not in given:
                    raise SettingError(keyword, None, "is needed", f"{name} needs the argument {keyword}")
            return called(*values, **given)

        if not isinstance(target, type):
            return checked  # type: ignore[return-value]
        target.__init__ = checked  # type: ignore[misc]
        return target

    return decorate


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean …?`` with the most similar name; empty if none is similar."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""

"""Checks of values that a user gives: types that say what is allowed, in a settings file and in Python alike.

The annotation of a field is the only description of it and of its values, as in ``Annotated[Count, "Passes over the
samples."]``: `require_type` checks values by it, also for the pydantic models of files, `allowed_text` has the text
for refusals and for the reference, and `description` what the field is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, astuple, dataclass, fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, signature
from math import inf, isfinite
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

Called = TypeVar("Called", bound=Callable[..., Any])

MOST = 2**63 - 1  # largest whole number, that of NumPy's int64


class _Limits:
    """Base of annotations; as metadata of a field of a pydantic model, its values are checked by `require_type`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: object) -> Any:
        kind = Annotated[source, self]

        def check(value: Any) -> Any:
            try:
                return require_type("", value, kind)
            except SettingError as error:
                raise refused("", value, error.allowed) from None

        return {"type": "function-plain", "function": {"type": "no-info", "function": check}}


@dataclass(frozen=True)
class Range(_Limits):
    """Annotation of numbers: the ends of their range."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def __contains__(self, number: float) -> bool:
        return all(fits(number, limit) for fits, _, limit in self._limits())

    def __str__(self) -> str:
        texts = [f"{words} {limit:{',' if isinstance(limit, int) else 'g'}}" for _, words, limit in self._limits()]
        between = re.fullmatch("at least (.*), at most (.*)", ", ".join(texts))
        return f" from {between[1]} to {between[2]}" if between else "".join(f", {text}" for text in texts)

    def _limits(self) -> Iterator[tuple[Callable[[float, float], bool], str, float]]:
        words = (gt, "greater than"), (ge, "at least"), (lt, "less than"), (le, "at most")
        for (fits, text), limit in zip(words, astuple(self), strict=True):
            if limit is not None:
                yield fits, text, limit


@dataclass(frozen=True, eq=False)
class OneOf(_Limits):
    """Annotation of text that is one of `choices`, in capitals or not; these may be a mapping to which others add."""

    choices: Collection[str]


@dataclass(frozen=True)
class Checked(_Limits):
    """Annotation of a value that `used` returns as it is used; None if it is not `allowed`, a text or what makes it."""

    used: Callable[[Any], Any]
    allowed: str | Callable[[], str]


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


def instance_of(kind: type[Any], allowed: str) -> Checked:
    """Annotation of instances of a class."""
    return Checked(lambda value: value if isinstance(value, kind) else None, allowed)


def _auto_or_boolean(value: Any) -> Any:
    value = as_spelled(plain(value), ("auto",))
    return value if isinstance(value, bool) or (isinstance(value, str) and value == "auto") else None


AutoOrBool = Annotated[bool | str, Checked(_auto_or_boolean, "'auto', true or false")]
Count = Annotated[int, Range(at_least=1)]
Seed = Annotated[int, Range(at_least=0)]
Positive = Annotated[float, Range(above=0)]
AtLeastZero = Annotated[float, Range(at_least=0)]
BelowOne = Annotated[float, Range(at_least=0, below=1)]
Fraction = Annotated[float, Range(at_least=0, at_most=1)]


def require_fields(section: str, instance: Any) -> None:
    """Set the fields of a frozen dataclass to their values as they are used: see `require_type`.

    `section` is that of the settings whose keys are the fields; empty for arguments that no settings file has.
    """
    kind: Any = type(instance)
    hints = type_hints(kind)
    for item in fields(kind):
        name = f"{section}.{item.name}".removeprefix(".")
        used = require_type(name, getattr(instance, item.name), hints[item.name])
        object.__setattr__(instance, item.name, used)


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """The annotations of the fields of a class, by name."""
    # Python 3.10 refuses KW_ONLY, which is no type.
    return get_type_hints(kind, localns={"KW_ONLY": Any}, include_extras=True)


def plain(value: Any) -> Any:
    """Scalars and arrays of NumPy and of other libraries as numbers and lists of Python; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def _parts(kind: Any) -> tuple[Any, Any, bool]:
    """The type and the limits of an annotation, without those of pydantic, and whether it allows None."""
    base, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if type(None) in get_args(base):
        return *_parts(next(other for other in get_args(base) if other is not type(None)))[:2], True
    if get_origin(base) is Literal:
        return str, OneOf(get_args(base)), False
    return base, next((item for item in limits if isinstance(item, _Limits)), Range()), False


def description(kind: Any) -> str:
    """The text in an annotation, which says what the field is; empty without one."""
    return next((item for item in getattr(kind, "__metadata__", ()) if isinstance(item, str)), "")


def described(kind: Called) -> Called:
    """Class decorator of a dataclass: list the fields that have a `description` in its docstring."""
    target: Any = kind
    rows = ""
    for item in fields(target):
        if text := description(hint := type_hints(target)[item.name]):
            limits = _parts(hint)[1]
            allowed = "" if callable(getattr(limits, "allowed", "")) else f"{allowed_text(hint)}; "
            default = item.default if item.default_factory is MISSING else item.default_factory()
            rows += f"    {item.name} : {allowed}by default {default!r}\n        {text}\n"
    target.__doc__ = f"{(target.__doc__ or '').rstrip()}\n\n    Attributes\n    ----------\n{rows}"
    return kind


def allowed_text(kind: Any) -> str:
    """What an annotation allows: ``a whole number, at least 1``, or ``'a' or 'b'``."""
    base, limits, _ = _parts(kind)
    if isinstance(limits, Checked):
        return limits.allowed if isinstance(limits.allowed, str) else limits.allowed()
    if isinstance(limits, OneOf):
        return must_be_one_of(limits.choices).removeprefix("must be ")
    if get_origin(base) is tuple:
        first, *others = get_args(base)
        count = "" if Ellipsis in others else f"{1 + len(others)} "
        return f"a list of {count}values, each {allowed_text(first)}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
    return words.get(base, "a table") + str(limits)


def base_type(kind: Any) -> Any:
    """The type of an annotation, without limits and None."""
    return _parts(kind)[0]


def require_type(name: str, value: Any, kind: Any) -> Any:
    """Check a value by an annotation, and return it as it is used; `SettingError` if the type does not allow it.

    Types are bool, int, float, str, tuples of such types, and one of them or None, with `Range`, `OneOf` or `Checked`.
    Values of other types are not checked. Numbers and lists of NumPy become those of Python, lists tuples, whole
    numbers floats, and choices are as they are spelled.
    """
    base, limits, takes_none = _parts(kind)
    given, allowed = plain(value), f"must be {allowed_text(kind)}"
    if given is None and takes_none:
        return None
    if isinstance(limits, Checked):
        if (used := limits.used(value)) is not None:
            return used
    elif get_origin(base) is tuple:
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            kinds = get_args(base)
            kinds = kinds[:1] * len(given) if kinds[-1] is Ellipsis else kinds
            if len(given) == len(kinds):
                pairs = enumerate(zip(given, kinds, strict=True))
                return tuple(require_type(f"{name}[{index}]", item, of_item) for index, (item, of_item) in pairs)
            value = list(given)
    elif isinstance(limits, OneOf):
        if isinstance(used := as_spelled(given, limits.choices), str) and used in limits.choices:
            return used
    elif base in (bool, str) and isinstance(given, base):
        return given
    elif base in (int, float) and isinstance(given, Integral if base is int else Real) and not isinstance(given, bool):
        return _require_range(name, given, base, limits, allowed)
    elif base not in (bool, str, int, float):
        return value
    raise SettingError(name, value, allowed)


def _require_range(name: str, given: Any, kind: Any, limits: Range, allowed: str) -> Any:
    try:
        number = kind(given)
    except OverflowError:
        number = inf
    if kind is float and not isfinite(number):
        raise SettingError(name, given, allowed.replace("a number", "a finite number"))
    if number not in limits:
        raise SettingError(name, given, allowed)
    if kind is int and number > MOST:
        raise SettingError(name, given, f"must be at most {MOST:,}")
    return number


def require_whole(name: str, value: object, minimum: int, maximum: int | None = None, allowed: str = "") -> int:
    """The value as an int from `minimum` to `maximum`, or a `SettingError`, which says what is `allowed`."""
    number: int = _require(name, value, Annotated[int, Range(at_least=minimum, at_most=maximum)], allowed)
    return number


def require_number(name: str, value: object, *, allowed: str = "", **limits: float) -> float:
    """The value as a finite float in a `Range` of `limits`, or a `SettingError`, which says what is `allowed`."""
    number: float = _require(name, value, Annotated[float, Range(**limits)], allowed)
    return number


def require_choice(name: str, value: object, choices: Iterable[str]) -> Any:
    """The one of `choices` that a text is but for capitals, or a `SettingError`."""
    return require_type(name, value, Annotated[str, OneOf(tuple(choices))])


def _require(name: str, value: object, kind: Any, allowed: str) -> Any:
    try:
        return require_type(name, value, kind)
    except SettingError as error:
        raise SettingError(name, value, allowed or error.allowed) from None


def must_be_one_of(choices: Iterable[str]) -> str:
    """``must be 'a', 'b' or 'c'``, for messages."""
    *others, last = map(repr, choices)
    return f"must be {', '.join(others)} or {last}" if others else f"must be {last}"


def with_advice(advice: Mapping[str, str]) -> Callable[[Called], Called]:
    """Decorator of a function or of a class, whose wrong arguments are refused by a `SettingError`.

    These are unknown and missing names, names that are given twice, and too many values without names. `advice` says
    what to write in place of keywords that are likely to be tried, and with ``"*"`` of too many values without names.
    """

    def decorate(target: Called) -> Called:
        called: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        taken = [item for item in signature(called).parameters.values() if item.name != "self"]
        start = len(signature(called).parameters) - len(taken)
        needed = [item.name for item in taken if item.default is Parameter.empty and item.kind.name[:3] != "VAR"]
        unnamed = [item.name for item in taken if item.kind is Parameter.POSITIONAL_OR_KEYWORD]
        takes_all = any(item.kind is Parameter.VAR_POSITIONAL for item in taken)
        known = [item.name for item in taken if item.kind.name[:3] != "VAR"]

        @wraps(called)
        def checked(*values: Any, **given: Any) -> Any:
            name = type(values[0]).__name__ if called.__name__ == "__init__" else target.__qualname__
            without = unnamed[: len(values) - start]
            if len(values) - start > len(unnamed) and not takes_all:
                hint = advice.get("*") or f"without names it takes {', '.join(unnamed) or 'none'}"
                raise SettingError(name, values[start:], hint, f"{name} takes fewer values without names: {hint}")
            for keyword in given:
                if keyword in without:
                    raise SettingError(keyword, given[keyword], "is given twice", f"{name} gets {keyword} twice")
                if keyword not in known:
                    hint = advice.get(keyword) or nearest(keyword, known) or f"it takes {', '.join(known)}"
                    raise SettingError(keyword, given[keyword], hint, f"{name} takes no argument {keyword!r}: {hint}")
            for keyword in needed:
                if keyword not in given and keyword not in without:
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

"""Base of the pydantic models of settings: types of values, frozen sections, and errors as one line."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function, plain_serializer_function_ser_schema

from hybridnn.errors import SettingError, one_line
from hybridnn.utils.checks import REFUSED, Checked, Count, as_spelled, must_be_one_of, refused

if TYPE_CHECKING:
    from pydantic import ValidationError

OTHER_KEYS = {"learning_rate": "lr"}
"""Keys of settings by the names that other programs give them."""
UNKNOWN = "unknown"
ALLOWED = {
    REFUSED: "{allowed}",
    "bool_type": "must be true or false",
    "dict_type": "must be a table of keys and values",
    "extra_forbidden": "is not a known key",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le:g}",
    "list_type": 'must be a list, as in [3, 4] or ["a", "b"]',
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_type": "must be a section with keys of its own",
    "string_too_short": "must not be empty",
    "string_type": "must be text in quotes",
    "too_long": "must have at most {max_length} values",
    "tuple_type": 'must be a list, as in [3, 4] or ["a", "b"]',
}


def is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    """Whether an annotation is a model; in Python 3.10 ``list[int]`` is a type too, which `issubclass` refuses."""
    return isinstance(kind, type) and not get_args(kind) and issubclass(kind, BaseModel)


def setting_error(error: ValidationError, known: Sequence[str]) -> SettingError:
    """The first error of a validation, with the number of further ones.

    `known` are the dotted names of all sections and keys, for a suggestion.
    """
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more)" if others else ""
    # ("model", "hidden", 1) is named "model.hidden[1]".
    setting = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    value, context = first["input"], first.get("ctx", {})
    if first["type"] in (REFUSED, UNKNOWN):
        setting, value = ".".join(part for part in (setting, context["key"]) if part), context["value"]
    if first["type"] in (UNKNOWN, "extra_forbidden"):
        hint = _nearest(setting, known) + more
        return SettingError(setting, value, hint, f"unknown setting {one_line(setting)}; {hint}")
    if first["type"] == "missing":
        return SettingError(setting, None, "is needed", f"{one_line(setting)} is missing{more}")
    return SettingError(setting, _plain(value), _allowed(first) + more)


def first_problem(error: ValidationError) -> str:
    """The first error in data other than settings, with its location, as one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return one_line(f"{where}: {_allowed(first)}" if where else _allowed(first))


def _allowed(error: Mapping[str, Any]) -> str:
    """What is allowed in place of the value of an error."""
    if error["type"] in ALLOWED:
        return ALLOWED[error["type"]].format(**error.get("ctx", {}))
    return re.sub(r"^Input should |^Value error, ", lambda start: "must " if start[0][0] == "I" else "", error["msg"])


def _plain(value: object) -> object:
    """Tuples as the lists of a settings file, and dataclasses as a table of the keys that differ from the defaults."""
    if dataclasses.is_dataclass(value):
        changed = [item for item in dataclasses.fields(value) if getattr(value, item.name) != item.default]
        return {item.name: getattr(value, item.name) for item in changed}
    return list(value) if isinstance(value, tuple) else value


def _nearest(setting: str, known: Sequence[str]) -> str:
    """Suggest a similar key, or list those of the section."""
    if near := nearest_key(setting, known):
        return f"did you mean {near}?"
    section = setting.rpartition(".")[0]
    siblings = ", ".join(_key(name) for name in known if name.rpartition(".")[0] == section)
    return f"known in [{section}]: {siblings}" if section else f"known sections: {siblings}"


def nearest_key(setting: str, known: Sequence[str]) -> str:
    """A similar key of the section of a setting, else the same or a similar key of another section, or none."""
    section, _, key = setting.rpartition(".")
    key = OTHER_KEYS.get(key, key)
    siblings = {_key(name): name for name in known if name.rpartition(".")[0] == section}
    everywhere = {_key(name): name for name in reversed(known)}
    for names, cutoff in ((siblings, 0.6), (everywhere, 1.0), (everywhere, 0.7)):
        if similar := difflib.get_close_matches(key, names, n=1, cutoff=cutoff):
            return names[similar[0]]
    return ""


def _key(name: str) -> str:
    return name.rpartition(".")[2]


def list_as_tuple(value: object) -> object:
    """Convert the lists of TOML to tuples, for frozen settings."""
    return tuple(value) if isinstance(value, list) else value


def _counts_as_tuple(value: object) -> object:
    """Lists of whole numbers as people type them: ``64,64``, and ``64``."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\s*,\s*\d+)*", value):
        return tuple(map(int, value.split(",")))
    return (value,) if type(value) is int else list_as_tuple(value)


def _texts_as_tuple(value: object) -> object:
    """Lists of texts as people type them: ``a,b``, and numbers as their text."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    items = [value] if _is_number(value) else value
    return tuple(str(item) if _is_number(item) else item for item in items) if isinstance(items, list) else items


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SECONDS = re.compile(r"(\d+(?:\.\d*)?) *s")  # seconds in a settings file: ``90 s``


def seconds_of(interval: int | str) -> float | None:
    """The seconds of an `Interval`; None if it is a number of steps."""
    match = SECONDS.fullmatch(interval) if isinstance(interval, str) else None
    return float(match[1]) if match else None


def _steps_or_seconds(value: Any) -> object:
    is_steps = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if is_steps or (isinstance(value, str) and seconds_of(value)) else None


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise refused("", text, "must not hold the character NUL")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]
FilePath = Annotated[Text, AfterValidator(os.path.expanduser)]
STEPS_OR_SECONDS = "a whole number of steps, at least 1, or seconds in quotes, as '90 s'"
Interval = Annotated[int | str, Checked(_steps_or_seconds, STEPS_OR_SECONDS)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_counts_as_tuple)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_texts_as_tuple)]


class Section(BaseModel):
    """A section of settings: frozen, without unknown keys or type conversion (``epochs = "10"`` is refused)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    if TYPE_CHECKING:  # options of `TrainConfig`, which sections get as fields

        def __getattr__(self, name: str) -> Any: ...

    def foreign_keys(self) -> frozenset[str]:
        """Keys that have no effect with the section's other values, and must not be set."""
        return frozenset()

    def require_no_foreign_key(self, beside: str) -> None:
        """Refuse a key that was set and has no effect with `beside`."""
        for key in sorted(self.foreign_keys() & self.model_fields_set):
            raise refused(key, getattr(self, key), f"does not belong to {beside}")


class FieldsOf:
    """Annotation of a section whose keys are the fields of a frozen dataclass, which checks its values.

    Of several dataclasses, the key ``name`` chooses one by its class attribute `name`; the first is the default.
    `others` gives further dataclasses by name, and is called only where the name is that of none of these.
    """

    def __init__(self, *kinds: type[Any], others: Callable[[], Mapping[str, type[Any]]] = dict) -> None:
        self.kinds, self._others = kinds, others

    @property
    def keys(self) -> list[str]:
        """Keys of all kinds."""
        keys = [item.name for kind in self.kinds for item in dataclasses.fields(kind)]
        return list(dict.fromkeys(["name", *keys] if len(self.kinds) > 1 else keys))

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        """Validation from a table or an instance, and serialization to a table."""
        return no_info_plain_validator_function(
            self._make, serialization=plain_serializer_function_ser_schema(self._table)
        )

    def _make(self, given: object) -> object:
        if isinstance(given, self.kinds) or (not isinstance(given, dict) and type(given) in self._others().values()):
            return given
        if not isinstance(given, dict):
            raise refused("", given, ALLOWED["model_type"])
        values = dict(given)
        kind, beside = self.kinds[0], ""
        if len(self.kinds) > 1:
            names = {kind.name: kind for kind in self.kinds}
            name = as_spelled(values.pop("name", kind.name), names)
            if not isinstance(name, str) or name not in names:
                names |= self._others()
            if not isinstance(name, str) or name not in names:
                raise refused("name", name, must_be_one_of(names))
            kind, beside = names[name], f"name = {name!r}"
        own = [item.name for item in dataclasses.fields(kind)]
        for key, value in values.items():
            if key not in own and key in self.keys:
                raise refused(key, value, f"does not belong to {beside}")
            if key not in own:
                raise PydanticCustomError(UNKNOWN, "unknown key", {"key": key, "value": value})
        try:
            return kind(**values)
        except SettingError as error:
            key = error.setting.rpartition(".")[2]
            raise refused(key, values.get(key, error.value), error.allowed) from None

    def _table(self, value: Any) -> dict[str, Any]:
        name = {"name": value.name} if len(self.kinds) > 1 else {}
        return name | {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def by_dotted_name(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one, with keys such as ``optimizer.lr``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= by_dotted_name(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat

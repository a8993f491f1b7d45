"""Extension of griffe, which reads the source: docstrings to which importing the package adds the fields of a class."""

from __future__ import annotations

import inspect
from pydoc import locate
from typing import Any

from griffe import Class, Extension


class CompleteDocstrings(Extension):
    """Docstrings of classes as `help` prints them."""

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        """Replace the docstring of a class that lists its fields only once it is imported."""
        if cls.docstring is not None and any("described" in str(item.value) for item in cls.decorators):
            cls.docstring.value = inspect.getdoc(locate(cls.path)) or ""

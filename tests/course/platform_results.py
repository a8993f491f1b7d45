"""Results as the platforms document them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Visibility = Literal["hidden", "after_due_date", "after_published", "visible"]
Format = Literal["text", "html", "simple_format", "md", "ansi"]


class _Documented(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class GradescopeTest(_Documented):
    score: float
    max_score: float
    status: Literal["passed", "failed"] | None = None
    name: str
    name_format: Format = "text"
    number: str
    output: str
    output_format: Format = "text"
    tags: list[str] = []
    visibility: Visibility = "visible"
    extra_data: dict[str, Any] = {}


class GradescopeEntry(_Documented):
    name: str
    value: float | str
    order: Literal["asc", "desc"] = "desc"


class GradescopeResults(_Documented):
    """``results.json`` of Gradescope: a score, or one in every test."""

    score: float | None = None
    execution_time: float | None = None
    output: str = ""
    output_format: Format = "text"
    test_output_format: Format = "text"
    test_name_format: Format = "text"
    visibility: Visibility = "visible"
    stdout_visibility: Visibility = "hidden"
    extra_data: dict[str, Any] = {}
    tests: list[GradescopeTest] = []
    leaderboard: list[GradescopeEntry] = []


class PrairieLearnImage(_Documented):
    url: str
    label: str = ""


class PrairieLearnTest(_Documented):
    name: str
    description: str = ""
    points: float
    max_points: float
    message: str = ""
    output: str = ""
    images: list[PrairieLearnImage] = []


class PrairieLearnResults(_Documented):
    """``results.json`` of PrairieLearn: a score from 0 to 1, unless the submission cannot be graded."""

    gradable: bool = True
    score: float | None = Field(None, ge=0, le=1)
    format_errors: str | list[str] = []
    message: str = ""
    output: str = ""
    images: list[PrairieLearnImage] = []
    tests: list[PrairieLearnTest] = []

    @model_validator(mode="after")
    def _has_score(self) -> PrairieLearnResults:
        if self.gradable and self.score is None:
            raise ValueError("a submission that can be graded has a score")
        return self


class AutolabScores(_Documented):
    """Last line of an autograder of Autolab."""

    scores: dict[str, float]
    scoreboard: list[float | str] = []


def autolab_feedback(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages of formatted feedback, checked."""
    assert value.pop("_presentation") == "semantic"
    stages = value.pop("stages")
    assert set(stages) == set(value)
    for stage in stages:
        for check in value[stage].values():
            assert set(check) in ({"passed"}, {"passed", "hint"})
            assert isinstance(check["passed"], bool)
    return {stage: value[stage] for stage in stages}

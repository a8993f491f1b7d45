"""JUnit XML: an outcome as test suites, one for each task."""

from __future__ import annotations

from xml.etree import ElementTree

from hybridnn.course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn.course.platforms.texts import plain


def junit_xml(outcome: Outcome) -> bytes:
    """The outcome as an XML file."""
    root = ElementTree.Element("testsuites", name=outcome.assignment)
    tasks = outcome.tasks
    if not outcome.gradable:
        reason = CheckOutcome(name="can be graded", kind="public", points=0, possible=1, message=outcome.reason)
        tasks = (TaskOutcome(name="submission", checks=(reason,)),)
    for task in tasks:
        failed = sum(not check.passed and not check.not_tried for check in task.checks)
        counts = {"tests": len(task.checks), "failures": failed, "skipped": sum(c.not_tried for c in task.checks)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": task.name, "errors": "0"})
        suite.attrib.update({name: str(count) for name, count in counts.items()})
        for check in task.checks:
            _add(suite, f"{outcome.assignment}.{task.name}", check)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add(suite: ElementTree.Element, group: str, check: CheckOutcome) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=group, name=f"{check.kind}: {plain(check.name)}")
    case.set("assertions", "1")
    if check.passed:
        return
    result = ElementTree.SubElement(case, "skipped" if check.not_tried else "failure")
    result.set("message", f"{check.points:.4g} of {check.possible:.4g} points")
    result.text = "\n".join(plain(text) for text in (check.message, check.hint) if text)

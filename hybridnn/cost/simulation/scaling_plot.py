"""The picture of a scaling curve: speed-up against ranks, and where the ranks' time goes."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from hybridnn.cost.simulation.scaling import ScalingCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SPEED_UP_COLOR, IDEAL_COLOR, MUTED, RULE = "#2a6fbb", "#5f6b7a", "#5f6b7a", "#d7dce2"
SHARES = (("computing", "#2b8259"), ("communication", "#f0a030"), ("bubble", "#d3e6fa"))


def scaling_png(curve: ScalingCurve, title: str) -> bytes:
    """Draw a scaling curve as a PNG.

    Parameters
    ----------
    curve : ScalingCurve
    title : str
        What was simulated.

    Returns
    -------
    bytes
    """
    # A figure without pyplot: no display, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=10)
    _draw_speed_up(left, curve)
    _draw_shares(right, curve)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_speed_up(axes: Axes, curve: ScalingCurve) -> None:
    ranks = [point.ranks for point in curve.points]
    axes.plot(ranks, ranks, color=IDEAL_COLOR, linestyle="--", linewidth=1.0, label="ideal")
    speed_ups = [point.speed_up for point in curve.points]
    axes.plot(ranks, speed_ups, color=SPEED_UP_COLOR, linewidth=1.8, marker="o", markersize=3.5, label="simulated")
    for point in curve.points[1:]:
        axes.annotate(
            f"{point.efficiency:.0%}",
            (point.ranks, point.speed_up),
            xytext=(0, -11),
            textcoords="offset points",
            fontsize=7,
            color=MUTED,
            ha="center",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    minibatch = "one minibatch for all" if curve.kind == "strong" else "minibatch grows with ranks"
    axes.set_title(f"{curve.kind.capitalize()} scaling: {minibatch}", fontsize=10)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples per second, over one rank's")
    axes.legend(frameon=False)
    axes.grid(which="major", color=RULE, linewidth=0.7)
    _tidy(axes)


def _draw_shares(axes: Axes, curve: ScalingCurve) -> None:
    places = range(len(curve.points))
    bottom = [0.0] * len(curve.points)
    for name, color in SHARES:
        heights = [_shares(point.communication_share, point.bubble_share)[name] for point in curve.points]
        axes.bar(places, heights, bottom=bottom, color=color, label=name, width=0.8)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(list(places), [str(point.ranks) for point in curve.points])
    axes.set_title("Where the ranks' time goes", fontsize=10)
    axes.set_xlabel("ranks")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, position: f"{share:.0%}")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(SHARES))
    _tidy(axes)


def _shares(communication: float, bubble: float) -> dict[str, float]:
    return {"computing": 1 - communication - bubble, "communication": communication, "bubble": bubble}


def _tidy(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, which="both")

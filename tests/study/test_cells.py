"""Cells of a study: the product of its axes, their settings, ranks and identifiers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.comm.launcher import Placement
from hybridnn.config.settings import ParallelSettings, TrainingSettings
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.cells import CellPlan, make_cells
from hybridnn.study.study_file import load_study
from hybridnn.utils.files import shipped_folder

PlanOf = Callable[..., CellPlan]


@pytest.fixture
def plan_of(tmp_path: Path) -> PlanOf:
    """Return a function that plans the cells of a study file's text."""

    def plan(text: str, *, reduced: bool = False, compares: str | None = "training") -> CellPlan:
        path = tmp_path / "study.toml"
        chosen = "" if compares is None else f'compares = "{compares}"\n'
        path.write_text(f'name = "s"\n{chosen}{text}')
        return make_cells(load_study(path, reduced=reduced))

    return plan


def _ids(plan: CellPlan) -> list[str]:
    return [cell.id for cell in plan.cells]


def test_repeats_run_round_by_round(plan_of: PlanOf) -> None:
    plan = plan_of('axes = {ranks = [2, 1], layouts = ["batch"], seeds = [0, 1], repeats = 2}')
    rounds = [(cell.values["repeat"], cell.values["seed"], cell.ranks) for cell in plan.cells]
    assert rounds == [(repeat, seed, ranks) for repeat in (1, 2) for seed in (0, 1) for ranks in (2, 1)]
    assert plan.cells[-1].id == "ranks-1_grid-1x1_seed-1_repeat-2"


def test_ids_do_not_change_when_an_axis_grows(plan_of: PlanOf) -> None:
    once = _ids(plan_of("axes = {ranks = [2], widths = [8]}"))
    assert _ids(plan_of("axes = {ranks = [2], widths = [8], repeats = 3}"))[:1] == once
    assert set(once) < set(_ids(plan_of("axes = {ranks = [2, 4], widths = [8, 16]}")))


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("axes = {ranks = [1, 2]}", 5),
        ('axes = {layouts = ["2x1x1:gpipe,1f1b"]}', 5),
        ("base.parallel.model = 2\naxes.parallel.overlap = [true, false]", 5),
        ("axes = {ranks = [2], widths = [8, 16]}", 1),
        ("axes = {ranks = [1, 2], seeds = [0, 1]}", 1),
        ("axes = {ranks = [1, 2], repeats = 2}", 2),
        ('compares = "training"\naxes = {ranks = [1, 2]}', 1),
        ('compares = "times"\naxes = {ranks = [1, 2], seeds = [0, 1]}', 5),
    ],
)
def test_studies_that_compare_times_are_repeated(plan_of: PlanOf, text: str, repeats: int) -> None:
    cells = plan_of(text, compares=None).cells
    assert max(cell.values.get("repeat", 1) for cell in cells) == repeats


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("{colour = 1}", r"baseline\.colour = 1: not an axis of this study"),
        ('{method = "fr"}', r"baseline\.method = 'fr': not a value of this axis: sequential, ddg, -"),
        ("{ranks = true}", r"axes\.ranks = True: must be a whole number"),
        ('{grid = "1x1", method = "ddg"}', r"baseline = 'grid = 1x1, method = ddg': no cell of this study"),
        ('{grid = "model", ranks = 2}', r"no cell of this study has these values"),
        ("3", r"baseline = 3"),
    ],
)
def test_baseline_that_no_cell_has_is_refused(plan_of: PlanOf, baseline: str, message: str) -> None:
    axes = 'ranks = [1, 2], layouts = ["1x1", "2x1x1:sequential,ddg"], seeds = [0]'
    with pytest.raises(SettingError, match=message):
        plan_of(f"baseline = {baseline}\naxes = {{{axes}}}")


def test_baseline_is_by_label(plan_of: PlanOf, tmp_path: Path) -> None:
    axes = 'layouts = ["1x1", "2x1x1:sequential,1f1b"], optimizer.lr = [0.1, 0.2]'
    for baseline, text in (
        ('{method = "sequential"}', {"method": "sequential"}),
        ('{optimizer.lr = 0.2, grid = "2x1x1"}', {"optimizer.lr": "0.2", "grid": "2x1x1"}),
        ('{grid = "batch"}', {"grid": "batch"}),
    ):
        plan_of(f"baseline = {baseline}\naxes = {{{axes}}}")
        assert load_study(tmp_path / "study.toml").baseline == text


def test_cell_has_the_settings_of_its_axes(plan_of: PlanOf) -> None:
    plan = plan_of(
        """
        base = {training = {epochs = 3}, model = {activation = "tanh"}}
        [axes]
        ranks = [8]
        layouts = ["2x4"]
        widths = [512]
        depths = [3]
        batch_sizes = [64]
        splits = ["alternating"]
        dtypes = ["float64"]
        seeds = [7]
        optimizer.lr = [0.25]
        """
    )
    (cell,) = plan.cells
    assert cell.id == (
        "ranks-8_grid-2x4_depth-3_width-512_batch-64_split-alternating_dtype-float64_seed-7_optimizer.lr-0.25"
    )
    settings = cell.settings
    assert settings.model.hidden == (512, 512, 512)
    assert (settings.model.activation, settings.training.epochs) == ("tanh", 3)
    assert (settings.parallel.pipeline, settings.parallel.batch, settings.parallel.model) == (1, 2, 4)
    assert settings.parallel.model_split == "alternating"
    assert (settings.training.batch_size, settings.training.dtype, settings.training.seed) == (64, "float64", 7)
    assert settings.optimizer.lr == 0.25


def test_layout_sets_ranks_method_and_axes(plan_of: PlanOf) -> None:
    staged, flat = plan_of('base.parallel.method = "gpipe"\naxes = {layouts = ["2x1x3:1f1b", "2x4"]}').cells
    assert (staged.ranks, staged.id, flat.ranks, flat.id) == (6, "grid-2x1x3_method-1f1b", 8, "grid-2x4")
    assert (staged.settings.parallel.method, flat.settings.parallel.method) == ("1f1b", ParallelSettings().method)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        *((layout, "must be 'batch', 'model', 'grid'") for layout in ('"2y4"', "[2, 4]", '"0x1"', '"1x2x3x4"', "true")),
        ('"pipeline"', "needs a method, such as pipeline:1f1b"),
        ('"2x1x1"', "needs a method, such as 2x1x1:1f1b"),
        ('"batch:1f1b"', "has no stages, and so no method"),
        ('"2x1:1f1b"', "has no stages, and so no method"),
        ('"pipeline:1f2b"', r"parallel\.method = '1f2b': did you mean 1f1b"),
    ],
)
def test_layout_in_another_form_is_refused(plan_of: PlanOf, layout: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan_of(f"axes = {{ranks = [2], layouts = [{layout}]}}")


FAMILIES = """
base.model.hidden = [8, 8, 8]
axes = {ranks = [2, 4, 5], layouts = ["batch", "model", "grid", "pipeline:1f1b", "2x1x2:gpipe"], repeats = 2}
"""


def test_families_are_layouts_of_every_number_of_ranks_with_one_rank_as_base(plan_of: PlanOf) -> None:
    plan = plan_of(FAMILIES, compares="times")
    layouts = [(cell.ranks, cell.values["grid"], cell.values["method"]) for cell in plan.cells]
    assert layouts == 2 * [
        (1, "1x1", "-"),
        *((2, "2x1", "-"), (2, "1x2", "-"), (2, "2x1x1", "1f1b")),
        *((4, "4x1", "-"), (4, "1x4", "-"), (4, "2x2", "-"), (4, "4x1x1", "1f1b"), (4, "2x2x1", "1f1b")),
        *((4, "2x1x2", "gpipe"), (5, "5x1", "-"), (5, "1x5", "-")),
    ]
    assert {cell.settings.parallel.method for cell in plan.cells if cell.values["method"] == "-"} == {"1f1b"}
    # With a baseline, and where trainings are compared, there is no other base.
    for text, compares in ((FAMILIES, "training"), ('baseline = {grid = "batch"}' + FAMILIES, "times")):
        assert plan_of(text, compares=compares).cells[0].ranks == 2
    with_ones = plan_of(FAMILIES.replace("[2, 4, 5]", "[1, 2, 4, 5]"), compares="times")
    assert [cell.id for cell in with_ones.cells] == [cell.id for cell in plan.cells]


def test_combinations_that_are_left_out_are_a_line_for_each_reason(plan_of: PlanOf) -> None:
    assert plan_of(FAMILIES).left_out == [
        "2 left out: a grid of several batch and model ranks needs a number of ranks that is not prime "
        "(ranks-2_grid-grid and 1 more)",
        "2 left out: the layout has another number of ranks (ranks-2_grid-2x1x2 and 1 more)",
        "1 left out: parallel.pipeline: at most 4, the number of layers (ranks-5_grid-5x1x1_method-1f1b)",
    ]
    with pytest.raises(SettingError, match=r"axes\.layouts = '2x2': no layout of this study: the layout has"):
        plan_of('axes = {ranks = [2], layouts = ["batch", "2x2"]}')
    with pytest.raises(SettingError, match=r"axes\.layouts = 'grid': no layout of this study: a grid of several"):
        plan_of('axes = {ranks = [2], layouts = ["grid"]}')


def test_layouts_of_a_file_are_those_that_its_network_can_have(plan_of: PlanOf) -> None:
    base = 'base = {data = {file = "mine.csv", targets = ["y"]}, model = {hidden = [8, 8, 8]}}\n'
    plan = plan_of(f'{base}axes = {{ranks = [2, 4, 5], layouts = ["model", "pipeline:1f1b", "pipeline:interleaved"]}}')
    assert [cell.values["grid"] for cell in plan.cells if cell.values["method"] == "1f1b"] == [
        "2x1x1",
        "4x1x1",
        "2x2x1",
    ]
    assert {cell.ranks for cell in plan.cells if cell.values["method"] == "interleaved"} == {2, 4}
    assert "ranks-4_grid-4x1x1_method-interleaved" in plan.skipped


def test_all_layouts_have_every_exact_method_whose_stages_work_at_once(plan_of: PlanOf) -> None:
    cells = plan_of('base.model.hidden = [8, 8, 8]\naxes = {ranks = [2], layouts = ["all"]}').cells
    methods = [name for name, method in METHODS.items() if method.exact and name != "sequential"]
    assert [cell.values["grid"] for cell in cells] == ["2x1", "1x2", *["2x1x1"] * len(methods)]
    assert [cell.values["method"] for cell in cells] == ["-", "-", *methods]


def test_base_may_be_a_settings_file(plan_of: PlanOf, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("training.batch_size = 7\nparallel = {pipeline = 2, method = 'pipedream'}\n")
    text = f"base = '{mine}'\naxes.layouts = ['1x1', '2x1']\nreduced.base.training.epochs = 9"
    plans = plan_of(text), plan_of(text, reduced=True)
    for plan, epochs in zip(plans, (TrainingSettings().epochs, 9), strict=True):
        for cell in plan.cells:
            training = cell.settings.training
            assert (training.batch_size, training.epochs, cell.settings.parallel.pipeline) == (7, epochs, 1)
    with pytest.raises(SettingError, match=r"study\.toml: base = 'none\.toml': "):
        plan_of("base = 'none.toml'\naxes.ranks = [1]")


def test_ranks_come_from_the_base_without_an_axis_of_ranks(plan_of: PlanOf) -> None:
    assert plan_of("base.parallel = {batch = 3, model = 2}\naxes = {seeds = [0]}").cells[0].ranks == 6
    stages = "base.parallel = {stages = [{batch = 2}, {model = 3}]}\naxes = {seeds = [0]}"
    assert plan_of(stages).cells[0].ranks == 5


def test_work_can_grow_with_the_ranks(plan_of: PlanOf) -> None:
    plan = plan_of(
        'base.data.name = "synthetic"\naxes = {ranks = [1, 3], batch_per_rank = [10], samples_per_rank = [50]}'
    )
    assert [cell.settings.training.batch_size for cell in plan.cells] == [10, 30]
    assert [cell.settings.data.rows for cell in plan.cells] == [50, 150]


def test_settings_can_be_axes_with_or_without_quotes(plan_of: PlanOf) -> None:
    quoted = plan_of('axes = {"optimizer.lr" = [0.1, 0.2], "optimizer.nesterov" = [true]}')
    assert quoted == plan_of("[axes.optimizer]\nlr = [0.1, 0.2]\nnesterov = [true]")
    assert _ids(quoted) == [f"optimizer.lr-{lr}_optimizer.nesterov-true" for lr in (0.1, 0.2)]


def test_ids_are_safe_as_folders(plan_of: PlanOf) -> None:
    plan = plan_of('base.data.name = "synthetic"\naxes = {"output.folder" = ["a/../b c"]}')
    assert _ids(plan) == ["output.folder-a-..-b-c"]
    keys = ("rows", "synthetic.test_samples", "synthetic.inputs", "synthetic.outputs")
    long = ", ".join(f'"data.{key}" = [1000]' for key in keys)
    (cell,) = plan_of(f'base.data.name = "synthetic"\naxes = {{widths = [1000], batch_sizes = [1000], {long}}}').cells
    assert len(cell.id) < 170


def test_variants_are_an_axis_of_several_settings(plan_of: PlanOf) -> None:
    text = """
        [axes]
        seeds = [0]
        [variants.a]
        data = {name = "synthetic", synthetic = {inputs = 4}}
        [variants.b]
        optimizer = {name = "adam"}
        [reduced.axes]
        variants = ["b"]
        """
    first, second = plan_of(text).cells
    assert (first.id, second.id) == ("variant-a_seed-0", "variant-b_seed-0")
    assert first.settings.data.synthetic.inputs == 4
    assert (second.settings.data.name, second.settings.optimizer.name) == ("digits", "adam")
    assert _ids(plan_of(text, reduced=True)) == ["variant-b_seed-0"]
    with pytest.raises(SettingError, match=r"axes\.variants = 'c': known in \[variants\]: a, b"):
        plan_of(text.replace("seeds = [0]", 'variants = ["c"]'))


def test_reduced_study_overrides_base_and_axes(plan_of: PlanOf) -> None:
    text = """
        base.training = {epochs = 10, batch_size = 7}
        axes = {widths = [8, 16], ranks = [1]}
        reduced.base.training.epochs = 1
        reduced.axes.widths = [4]
        """
    (cell,) = plan_of(text, reduced=True).cells
    assert cell.id == "ranks-1_width-4"
    assert (cell.settings.training.epochs, cell.settings.training.batch_size) == (1, 7)
    assert len(plan_of(text).cells) == 2
    with pytest.raises(SettingError, match=r"has no \[reduced\]"):
        plan_of("axes = {ranks = [1]}", reduced=True)


@pytest.mark.parametrize(
    ("text", "skipped", "reason"),
    [
        (
            'axes = {ranks = [4, 2], layouts = ["2x2"], repeats = 2}',
            "ranks-2_grid-2x2",
            "the layout has another number of ranks",
        ),
        (
            'axes = {layouts = ["3x1x1:1f1b", "4x1x1:1f1b"], depths = [2]}',
            "grid-4x1x1_method-1f1b_depth-2",
            "at most 3, the number of layers",
        ),
        (
            'base.parallel.microbatches = 2\naxes = {layouts = ["2x1x1:gpipe,ddg"]}',
            "grid-2x1x1_method-ddg",
            "1 with ddg",
        ),
        (
            'axes = {"schedule.warmup_epochs" = [1, 4], "training.epochs" = [2, 5], "schedule.name" = ["cosine"]}',
            "schedule.name-cosine_schedule.warmup_epochs-4_training.epochs-2",
            "must be less than training.epochs = 2",
        ),
    ],
)
def test_impossible_cells_are_skipped_with_the_reason(plan_of: PlanOf, text: str, skipped: str, reason: str) -> None:
    plan = plan_of(text)
    assert plan.cells
    ((name, why),) = plan.skipped.items()
    assert name == skipped
    assert reason in why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes = {width = [1]}", r"not an axis; known are ranks, nodes, ranks_per_node, layouts, depths"),
        ('axes = {"optimizer.lrr" = [1.0]}', r"unknown setting optimizer\.lrr; did you mean optimizer\.lr\?"),
        ('axes = {widths = [8, "a"]}', r"axes\.widths = 'a': must be a whole number, at least 1"),
        ("axes = {widths = 8}", r"axes\.widths = 8: must be a list"),
        ("axes = {repeats = [1, 2]}", r"axes\.repeats = \[1, 2\]: must be a whole number"),
        ("axes = {repeats = 9_000_000_000}", r"axes\.repeats = 9000000000: must be a whole number from 1 to 1,000"),
        ('axes = {binding = ["cores"]}', r"axes\.binding = 'cores': must be 'none', 'core' or 'socket'"),
        ('axes = {layouts = ["all"]}', "needs the axis ranks"),
        ('axes = {"output.folder" = ["a b", "a-b"]}', "two cells have this name"),
        (
            'axes = {"optimizer.name" = ["sgd", "adam"], "optimizer.momentum" = [0.5]}',
            "does not belong to name = 'adam'",
        ),
        (
            'axes = {"parallel.method" = ["fr", "ddg"]}',
            r"no cell of this study can run: parallel.method: needs a pipeline of at least 2",
        ),
        ("base.training.epoch = 1\naxes = {ranks = [1]}", r"unknown setting training\.epoch"),
        ("axis = {ranks = [1]}", r"axis; did you mean axes\?|axes is missing|axes"),
        ("base.model.hidden = [4, 8]\naxes = {depths = [2]}", r"must be layers of one width"),
        ("base.model.hidden = 5\naxes = {widths = [8]}", r"model\.hidden = 5: must be a list of widths"),
        ('base.parallel = 1\naxes = {layouts = ["1x2"]}', r"parallel.pipeline = 1: parallel is a value, not a section"),
        ('axes = {variants = [["x"]]}\nvariants.y = {}', r"axes\.variants = \['x'\]: known in \[variants\]: y"),
        ("axes = {ranks", r"is not valid TOML"),
    ],
)
def test_mistakes_are_named(plan_of: PlanOf, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as error:
        plan_of(text)
    assert "\n" not in str(error.value)


def test_unsafe_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('name = "../x"\naxes = {ranks = [1]}')
    with pytest.raises(SettingError, match="name"):
        load_study(tmp_path / "s.toml")
    with pytest.raises(SettingError, match=r"cannot be read: .*ready studies: .*laugier-figure-5"):
        load_study(tmp_path / "none.toml")


def test_without_a_distribution_of_studies_an_unknown_name_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hybridnn.study.study_file.entry_points", lambda **_: ())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="pip install hybridnn-papers adds the studies of the papers"):
        load_study("laugier-figure-5")


def test_placement_follows_from_nodes_and_ranks_per_node(plan_of: PlanOf) -> None:
    plan = plan_of("threads = 3\naxes = {nodes = [1, 2], ranks_per_node = [2, 4], layouts = ['batch']}")
    placements = {cell.id: (cell.ranks, cell.placement) for cell in plan.cells}
    assert placements["nodes-2_ranks-per-node-4_grid-8x1"] == (8, Placement(2, 4, 3))
    assert {ranks for ranks, _ in placements.values()} == {2, 4, 8}
    assert plan.cells[0].settings.parallel.batch == 2


def test_nodes_that_ranks_do_not_fill_are_skipped(plan_of: PlanOf) -> None:
    plan = plan_of("axes = {ranks = [1, 4, 5], nodes = [1, 2]}")
    assert plan.skipped == {"ranks-1_nodes-2": "1 ranks are too few for 2 nodes"}
    assert [cell.placement.ranks_per_node for cell in plan.cells] == [1, 4, 2, 5, 3]
    plan = plan_of("axes = {ranks = [4], nodes = [1, 2], ranks_per_node = [2]}")
    assert plan.skipped == {"ranks-4_nodes-1_ranks-per-node-2": "4 ranks do not fill 1 nodes with 2 ranks each"}
    assert plan_of("axes = {ranks = [5], ranks_per_node = [2]}").cells[0].placement == Placement(3, 2)


def test_threads_and_binding_are_axes(plan_of: PlanOf) -> None:
    cells = plan_of('axes = {ranks = [2], threads = [1, 2], binding = ["none", "core"]}').cells
    assert cells[3].id == "ranks-2_threads-2_binding-core"
    placements = [(cell.placement.threads, cell.placement.binding) for cell in cells]
    assert placements == [(1, "none"), (1, "core"), (2, "none"), (2, "core")]


@pytest.mark.parametrize(
    ("name", "cells", "compares"), [("fastest_layout", 45, "times"), ("costs_accuracy", 70, "training")]
)
def test_shipped_studies_of_the_two_questions_have_their_cells(name: str, cells: int, compares: str) -> None:
    study = load_study(shipped_folder("hpc_jobs") / f"{name}.toml")
    assert (len(make_cells(study).cells), study.keys.compares) == (cells, compares)

"""Settings: defaults, errors for wrong, unknown and contradictory values, and overrides."""

from inspect import signature
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn import MLP, SGD, DeviceOptions, Step, TrainConfig, Trainer
from hybridnn.config.settings import Settings, load_settings, settings_from, to_toml, with_stages
from hybridnn.errors import SettingError
from hybridnn.nn.optimizers import optimizers
from hybridnn.training.config import SETTING_NAMES
from hybridnn.utils.checks import must_be_one_of

LIST = 'must be a list, as in [3, 4] or ["a", "b"]'


@pytest.mark.parametrize(
    ("overrides", "lr", "weight_decay"),
    [
        ([], 0.005, 0.0),
        (["optimizer.name=adam"], 0.001, 0.0),
        (["optimizer.name=adamw"], 0.001, 0.01),
        (["optimizer.name=adamw", "optimizer.lr=0.5", "optimizer.weight_decay=0"], 0.5, 0.0),
    ],
)
def test_defaults_depend_on_the_optimizer(overrides: list[str], lr: float, weight_decay: float) -> None:
    optimizer = load_settings(None, overrides).optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (lr, weight_decay)


OPTIMIZER_NAMES = must_be_one_of(kind.name for kind in optimizers())

WRONG = {
    "training.epochs=0": "training.epochs = 0: must be a whole number, at least 1",
    "model.hidden=[3,-1]": "model.hidden[1] = -1: must be a whole number, at least 1",
    "model.hidden=5.5": f"model.hidden = 5.5: {LIST}",
    "data.test_fraction=1": "data.test_fraction = 1: must be a number, at least 0, less than 1",
    "data.file=3": "data.file = 3: must be text in quotes",
    "data.targets=['y']": "data.targets = ['y']: does not belong to name = 'digits'",
    "data.file=a.npz data.rows=3": "data.rows = 3: does not belong to file = 'a.npz'",
    "data.synthetic.inputs=9": "data.synthetic = {'inputs': 9}: does not belong to name = 'digits'",
    "data.name=synthetic data.synthetic.test_samples=0": "data.synthetic.test_samples = 0: must be at least 1",
    "optimizer.name=adm": f"optimizer.name = 'adm': {OPTIMIZER_NAMES}",
    "optimizer.name=adam optimizer.momentum=0.9": "optimizer.momentum = 0.9: does not belong to name = 'adam'",
    "optimizer.momentum=0.9 optimizer.nesterov=true optimizer.dampening=0.1": (
        "optimizer.nesterov = True: needs momentum > 0 and dampening = 0"
    ),
    "schedule.factor=0.5": "schedule.factor = 0.5: does not belong to name = 'constant'",
    "schedule.name=warmup-linear training.epochs=1": (
        "schedule.warmup_epochs = 1.0: must be less than training.epochs = 1"
    ),
    "output.folder=": "output.folder = '': must not be empty",
}
"""By overrides, how the message about a value begins that is wrong by itself or with the others."""


@pytest.mark.parametrize("overrides", WRONG)
def test_wrong_value_is_named_with_what_is_allowed(overrides: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings(None, overrides.split(" "))
    assert str(caught.value).startswith(WRONG[overrides])
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "unknown setting training.epoch; did you mean training.epochs?"),
        ("model.epochs=3", "unknown setting model.epochs; did you mean training.epochs?"),
        ("trainin.epochs=3", "unknown setting trainin; did you mean training?"),
        ("optimizer.momentun=3", "unknown setting optimizer.momentun; did you mean optimizer.momentum?"),
        ("device.tf=true", "unknown setting device.tf; did you mean device.tf32?"),
        ("data.synthetic.input=3", "unknown setting data.synthetic.input; did you mean data.synthetic.inputs?"),
        (
            "parallel.zzz=3",
            "unknown setting parallel.zzz; known in [parallel]: pipeline, batch, model, stages, "
            "auto, model_split, overlap, shared_replicas, method, microbatches, chunks, partition, order, barriers",
        ),
        (
            "zzz.zzz=3",
            "unknown setting zzz; known sections: data, model, training, optimizer, schedule, parallel, device, output",
        ),
    ],
)
def test_unknown_setting_names_the_nearest_known_one(override: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings(None, [override])
    assert str(caught.value) == message


def test_several_mistakes_are_one_line() -> None:
    with pytest.raises(SettingError) as caught:
        load_settings(None, ["training.epochs=0", "training.batch_size=0", "optimizer.lr=-1"])
    assert str(caught.value) == "training.epochs = 0: must be a whole number, at least 1 (and 2 more)"
    assert (caught.value.setting, caught.value.value) == ("training.epochs", 0)


@pytest.mark.parametrize(
    ("text", "number"), [(".01", 0.01), ("1.", 1.0), ("+.5", 0.5), ("1.e-3", 0.001), (".5E1", 5.0), ("1e-3", 0.001)]
)
def test_numbers_need_no_digit_on_both_sides_of_the_point(text: str, number: float) -> None:
    assert load_settings(None, [f"optimizer.lr={text}"]).optimizer.lr == number


@pytest.mark.parametrize("text", ["007", "1_", "Infinity", "NaN", ".", "1.2.3", ".5x", "a.b"])
def test_text_that_is_almost_a_number_stays_text(text: str) -> None:
    assert load_settings(None, [f"output.folder={text}"]).output.folder == text


@pytest.mark.parametrize(
    "text", ["training.epochs", "epochs=3", "=3", ".epochs=3", "training.=3", "training.epochs.x=3"]
)
def test_override_of_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"section\.key=value"):
        load_settings(None, ["training.epochs=3", text])


def test_overrides_apply_over_the_file_in_order(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[training]\nepochs = 3\nseed = 5\n")
    training = load_settings(config, ["training.epochs=4", "training.epochs=7"]).training
    assert (training.epochs, training.seed) == (7, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training = 3\n", "training = 3: must be a section with keys of its own"),
        ("optimizer = 3\n", "optimizer = 3: must be a section with keys of its own"),
        ("[training]\nepochs = = 3\n", r"c\.toml': is not valid TOML.*line 2"),
        (None, r"c\.toml': cannot be read: No such file"),
    ],
)
def test_file_that_cannot_be_used(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "c.toml").write_text(text)
    with pytest.raises(SettingError, match=message):
        load_settings(tmp_path / "c.toml")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().training.epochs = 3  # type: ignore[misc]


OPTIMIZERS = st.sampled_from(
    [
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "sgd", "dampening": 0.5, "lr": 1e-30},
        {"name": "adam", "betas": [0.8, 0.9], "eps": 1e-6},
        {"name": "adamw"},
        {"name": "rmsprop", "alpha": 0.5},
        {"name": "nadam", "betas": [0.9, 0.99]},
        {"name": "sgd-pipemare", "annealing_updates": 7, "discrepancy_decay": 0.0},
    ]
)
SCHEDULES = st.sampled_from(
    [
        {"name": "constant"},
        {"name": "step", "milestones": [2, 4], "factor": 0.5},
        {"name": "warmup-linear", "warmup_epochs": 0.5},
        {"name": "cosine", "warmup_epochs": 0.5},
    ]
)
DATA = st.sampled_from(
    [
        {"name": "airfoil", "rows": 100},
        {"file": 'odd "name"\\é.csv', "targets": ["a b", "c"]},
        {"name": "synthetic", "synthetic": {"task": "classification", "outputs": 3}},
    ]
)


@given(
    data=DATA, optimizer=OPTIMIZERS, schedule=SCHEDULES, hidden=st.lists(st.integers(1, 9)), norm=st.floats(1e-9, 1e9)
)
def test_resolved_settings_load_as_equal_settings(tmp_path_factory, data, optimizer, schedule, hidden, norm) -> None:
    settings = settings_from(
        {
            "data": data,
            "model": {"hidden": hidden},
            "training": {"clip_norm": norm},
            "optimizer": optimizer,
            "schedule": schedule,
        }
    )
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert load_settings(path) == settings


def test_resolved_settings_leave_out_what_means_nothing() -> None:
    text = to_toml(load_settings(None, ["optimizer.name=adam"]))
    assert "betas" in text
    assert not any(key in text for key in ("momentum", "nesterov", "milestones", "[data.synthetic]", "targets"))


def test_what_only_a_gpu_has_is_not_kept_with_the_cpu() -> None:
    on_gpu = ["device.name=gpu", "device.transport=staging", "device.tf32=true"]
    assert 'transport = "staging"\ntf32 = true' in to_toml(load_settings(None, on_gpu))
    assert '[device]\nname = "cpu"\n\n' in to_toml(load_settings(None, [*on_gpu, "device.name=cpu"]))


def test_sections_are_the_objects_of_the_library() -> None:
    assert Settings().device == DeviceOptions()
    assert signature(Trainer).parameters["device"].default == DeviceOptions().name
    chosen = load_settings(None, ["device.name=gpu", "device.transport=nccl", "device.tf32=true"]).device
    assert chosen == DeviceOptions("gpu", "nccl", tf32=True)
    for kind in optimizers():
        assert load_settings(None, [f"optimizer.name={kind.name}"]).optimizer == kind()
    steps = load_settings(None, ["schedule.name=step", "schedule.milestones=[2, 4]", "schedule.factor=1"]).schedule
    assert steps == Step((2, 4), 1.0)


def test_a_settings_file_has_every_option_of_a_trainer_in_its_section() -> None:
    values = settings_from({}).model_dump()
    trainer = Trainer(MLP([2, 3]))
    for key, name in SETTING_NAMES.items():
        section, _, setting = name.partition(".")
        assert values[section][setting] == getattr(TrainConfig(MLP([2, 3])), key), name
        with pytest.raises(AttributeError, match=f"{key} is fixed"):
            setattr(trainer, key, 7)
    for key in ("model", "optimizer", "schedule", "config", "grid", "engine", "layout", "device", "threads"):
        with pytest.raises(AttributeError, match=f"{key} is fixed"):
            setattr(trainer, key, 7)
    trainer.set_learning_rate(0.5)
    assert trainer.optimizer == SGD(0.5)
    assert settings_from({"training": {"batch_size": 7}}).train_config(MLP([2, 3])).batch_size == 7
    assert trainer.batch_size == 100


@pytest.mark.parametrize(
    ("given", "ranks", "stages"),
    [
        (["method=pipedream"], 4, 4),
        (["method=gpipe", "batch=2"], 8, 4),
        (["method=gpipe", "batch=2", "model=2"], 8, 2),
        (["method=sequential"], 1, 1),
        (["method=gpipe", "pipeline=1"], 8, 1),
        (["microbatches=4"], 8, 1),
    ],
)
def test_a_method_that_is_set_makes_the_ranks_that_are_left_stages(given, ranks, stages, tmp_path) -> None:
    settings = load_settings(None, [f"parallel.{text}" for text in given])
    settled = with_stages(settings.parallel, ranks)
    assert settled.pipeline == stages
    assert with_stages(settled, 64) == settled
    (tmp_path / "config.toml").write_text(to_toml(settings.model_copy(update={"parallel": settled})))
    assert with_stages(load_settings(tmp_path / "config.toml").parallel, 64).pipeline == stages


@pytest.mark.parametrize(("given", "ranks"), [([], 1), (["batch=4"], 4), (["model=4"], 7)])
def test_on_one_stage_exact_methods_are_taken_and_others_refused(given: list[str], ranks: int) -> None:
    for method in ("pipedream", "gpipe", "zb-h1"):
        settings = load_settings(None, [f"parallel.{text}" for text in (f"method={method}", *given)])
        if method == "pipedream":
            with pytest.raises(SettingError, match=r"^parallel.method = 'pipedream': needs a pipeline of at least 2"):
                with_stages(settings.parallel, ranks)
        else:
            assert with_stages(settings.parallel, ranks).pipeline == 1

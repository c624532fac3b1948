import json
import re

import pytest
from pydantic import ValidationError

import twoprong as tp
from twoprong.config import FitConfig, load_config, parse_config
from twoprong.errors import ConfigError
from twoprong.presets import PRESETS, as_config


def written(folder, text):
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(caught):
    """The message's lines after the first, by the key (or the assignment) they are about."""
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    return dict(re.split(r": ", line, maxsplit=1) for line in lines)


MISTAKES = """
sed = 1
on_small_batch = "ignore"

[atack]
eps = 0.1

[attack]
eps = "8/0"
step = "eight"

[kernel]
batch_size = 1
beta0 = 1.5

[denoiser]
epoch = 3
lr = -1.0
milestones = [0.5, 0.2]

[detector]
permutations = "many"
"""


def test_one_error_lists_every_mistake_of_a_file(tmp_path):
    path = written(tmp_path, MISTAKES)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    found = problems(caught)
    expected = {
        "sed": ["unknown key", "did you mean 'seed'?"],
        "on_small_batch": ["expected one of denoise, classify, error", "got 'ignore'"],
        "atack": ["unknown key", "did you mean 'attack'?"],
        "attack.eps": ["fraction such as 8/255", "got '8/0'"],
        "attack.step": ["fraction such as 8/255", "got 'eight'"],
        "kernel.batch_size": ["greater than or equal to 2", "got 1"],
        "kernel.beta0": ["less than 1", "got 1.5"],
        "denoiser.epoch": ["unknown key", "did you mean 'epochs'?"],
        "denoiser.lr": ["greater than 0", "got -1.0"],
        "denoiser.milestones": ["rising", "[0.5, 0.2]"],
        "detector.permutations": ["whole number", "got 'many'"],
    }
    assert set(found) == set(expected)
    assert [(key, part) for key, parts in expected.items() for part in parts if part not in found[key]] == []
    assert str(caught.value).startswith(f"{path}: {len(expected)} problems\n")


def test_a_key_like_no_other_gets_the_list_of_known_ones():
    with pytest.raises(ConfigError, match=r"splits\.zebra: unknown key; known: kernel, reference, calibration") as caught:
        parse_config({"splits": {"zebra": 1}})
    assert "1 problem\n" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), (" 8 / 255 ", 8 / 255), ("0.5", 0.5), ("1e-3", 1e-3), ("3", 3.0)]
)
def test_numbers_as_people_write_them(text, value):
    assert parse_config({"attack": {"eps": text}}).attack.eps == value


@pytest.mark.parametrize("text", ["", "8/", "/255", "1/0", "8/255/2", "nan", "inf", "1e999", "0x10"])
def test_what_is_no_number_is_named(text):
    with pytest.raises(ConfigError) as caught:
        parse_config({"attack": {"eps": text}})
    assert f"got {text!r}" in problems(caught)["attack.eps"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("attack", "eps", 0),
        ("attack", "eps", float("inf")),
        ("attack", "steps", 0),
        ("attack", "norm", "l1"),
        ("kernel", "epochs", -1),
        ("detector", "false_alarm_rate", 0),
        ("detector", "false_alarm_rate", 1),
        ("detector", "confidence", 0.4),
        ("detector", "min_batch_size", 0),
        ("detector", "threshold", float("nan")),
        ("denoiser", "sigma", 1.1),
        ("denoiser", "alpha", -0.1),
        ("denoiser", "batch_size", 1),
        ("denoiser", "milestones", [0.5, 0.5]),
        ("denoiser", "milestones", [0]),
        ("splits", "kernel", 0),
    ],
)
def test_values_out_of_range_are_refused_where_they_are(section, key, value):
    with pytest.raises(ConfigError) as caught:
        parse_config({section: {key: value}})
    assert [name for name in problems(caught) if not name.startswith(f"{section}.{key}")] == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("kernel", "epochs", 0),
        ("detector", "min_batch_size", 2),
        ("detector", "confidence", 0.5),
        ("denoiser", "sigma", 0),
        ("denoiser", "sigma", 1),
        ("denoiser", "alpha", 0),
        ("detector", "threshold", -0.5),
    ],
)
def test_the_ends_of_a_range_are_inside(section, key, value):
    assert getattr(getattr(parse_config({section: {key: value}}), section), key) == value


def test_the_smallest_batch_may_not_exceed_the_largest():
    assert parse_config({"detector": {"min_batch_size": 7, "max_batch_size": 7}}).detector.max_batch_size == 7
    with pytest.raises(ConfigError, match="min_batch_size <= max_batch_size, got 8 and 7"):
        parse_config({"detector": {"min_batch_size": 8, "max_batch_size": 7}})


def test_assignments_win_over_the_file_and_the_file_over_the_base(tmp_path):
    path = written(tmp_path, 'seed = 1\n[denoiser]\nlr = 0.5\nepochs = 7\n[attack]\neps = "4/255"\n')
    base = parse_config({"seed": 9, "denoiser": {"lr": 0.25, "epochs": 5, "batch_size": 3}})
    assignments = ["denoiser.lr = 2/8", "detector.features=layer4.1", "denoiser.milestones=[0.3, 0.6]", "attack.norm=l2"]
    config = load_config(path, assignments, base)
    assert config.denoiser.lr == 0.25  # assigned
    assert config.denoiser.milestones == (0.3, 0.6)
    assert config.detector.features == "layer4.1"
    assert config.attack.norm == "l2"
    assert (config.seed, config.denoiser.epochs, config.attack.eps) == (1, 7, 4 / 255)  # from the file
    assert config.denoiser.batch_size == 3  # from the base
    assert config.kernel == FitConfig().kernel


def test_the_last_of_two_assignments_wins():
    assert load_config(assignments=["seed=1", "seed=2"]).seed == 2


def test_without_anything_the_defaults_hold():
    assert load_config() == FitConfig()
    assert load_config(base=PRESETS["digits"]) == PRESETS["digits"]


def test_bad_assignments_are_reported_along_with_the_file(tmp_path):
    path = written(tmp_path, "[attack]\nsteps = 0\n")
    bad = ["denoiser.epochs", "=3", "attack.steps.more=1", "denoiser.lr=fast", "denoiser.widht=1"]
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["seed=3", *bad])
    found = problems(caught)
    assert set(found) == {
        "attack.steps",
        "--set denoiser.epochs",
        "--set =3",
        "--set attack.steps.more=1",
        "denoiser.lr",
        "denoiser.widht",
    }
    assert "expected SECTION.KEY=VALUE" in found["--set denoiser.epochs"]
    assert "did you mean 'width'?" in found["denoiser.widht"]


@pytest.mark.parametrize("content", [b"seed = \n", b"[attack\n", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: not a readable TOML file")):
        load_config(path)


def test_settings_are_frozen_at_every_level():
    config = FitConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1
    with pytest.raises(ValidationError, match="frozen"):
        config.denoiser.epochs = 1
    assert config == FitConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_a_round_trip(name):
    stored = json.loads(json.dumps(PRESETS[name].model_dump(mode="json")))
    assert parse_config(stored) == PRESETS[name]


def test_a_round_trip_keeps_every_kind_of_value():
    config = parse_config(
        {
            "seed": 5,
            "on_small_batch": "denoise",
            "attack": {"eps": "3/255", "norm": "l2"},
            "detector": {"features": "layer4", "threshold": 0.5},
            "denoiser": {"milestones": []},
            "classifier": {"augment": False},
        }
    )
    again = parse_config(config.model_dump(mode="json"))
    assert again == config
    assert again.attack.eps == 3 / 255
    assert again.denoiser.milestones == ()


@pytest.mark.parametrize("layers", ["[]", "3", '["a", 3]'])
def test_layers_that_are_no_names_are_one_problem(layers):
    with pytest.raises(
        ConfigError, match=r"1 problem\n  detector\.features: expected a layer's name or a list of names, got"
    ):
        load_config(assignments=[f"detector.features={layers}"])


def test_one_layer_or_several_can_be_named():
    for given, kept in (("layer4", "layer4"), ('["a", "b"]', ("a", "b"))):
        assert load_config(assignments=[f"detector.features={given}"]).detector.features == kept


def test_in_python_settings_are_a_dict_a_file_themselves_or_nothing(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('seed = 3\n[attack]\neps = "4/255"\n')
    expected = parse_config({"seed": 3, "attack": {"eps": 4 / 255}})
    for given in ({"seed": 3, "attack": {"eps": "4/255"}}, file, str(file), expected):
        assert as_config(given) == expected
    assert as_config(None) == FitConfig()
    assert as_config({}) == FitConfig()
    with pytest.raises(ConfigError, match=r"config: expected a FitConfig, a dict, a preset's name or .* file, got int"):
        as_config(3)


def test_a_dict_with_mistakes_gets_the_messages_of_the_command_line():
    wrong = {"sed": 1, "attack": {"norm": "linff", "eps": -1}}
    with pytest.raises(ConfigError) as caught:
        as_config(wrong)
    assert str(caught.value).splitlines() == [
        "config: 3 problems",
        "  attack.norm: expected one of linf, l2, got 'linff'; did you mean 'linf'?",
        "  attack.eps: expected greater than 0, got -1",
        "  sed: unknown key; did you mean 'seed'?",
    ]
    with pytest.raises(ConfigError, match="sed: unknown key"):
        tp.fit(None, None, config=wrong)

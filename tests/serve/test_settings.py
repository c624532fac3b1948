import re
import tomllib
from pathlib import Path

import pytest

from twoprong.config import parse_settings
from twoprong.errors import ConfigError
from twoprong.serve.service import _fitted, _limited
from twoprong.serve.settings import BatchSettings, KeySettings, LimitSettings, ServeSettings, load_settings


def test_a_file_with_mistakes_names_all_of_them(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('threads = -1\n[batch]\ndeadlin = 1\n[keys.alice]\nsha256 = "abc"\nrat = 3\n')
    with pytest.raises(ConfigError, match=r"4 problems") as caught:
        load_settings(path)
    message = str(caught.value)
    assert "batch.deadlin: unknown key; did you mean 'deadline'?" in message
    assert "keys.alice.rat: unknown key; did you mean 'rate'?" in message
    path.write_text("not toml")
    with pytest.raises(ConfigError, match="not TOML"):
        load_settings(path)


def test_settings_are_read(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text(f'on_small_batch = "classify"\n[batch]\ndeadline = 2\n[keys.alice]\nsha256 = "{"0" * 64}"\n')
    found = load_settings(path)
    assert (found.batch.deadline, found.on_small_batch, found.keys["alice"].rate) == (2.0, "classify", 1000.0)
    assert load_settings(None) == ServeSettings()


def test_a_key_has_half_of_what_there_is_unless_that_is_said():
    usual = BatchSettings()
    assert (usual.max_items_per_key, usual.max_bytes_per_key) == (usual.max_items // 2, usual.max_bytes // 2)
    fewer = BatchSettings(max_items=301, max_bytes=1000, max_bytes_per_key=900)
    assert (fewer.max_items_per_key, fewer.max_bytes_per_key) == (150, 900)
    assert BatchSettings(max_items=1, max_batch=1, max_per_key=1, least=1).max_items_per_key == 1
    for name in ("max_items", "max_bytes"):
        with pytest.raises(ValueError, match=f"{name}_per_key: expected at most {name} = 500, got 501"):
            BatchSettings(**{name: 500, f"{name}_per_key": 501})


def test_replicas_on_ray_must_be_possible(tmp_path):
    path = tmp_path / "serve.toml"
    for wrong, message in (
        ("min_models = 3", "min_models: expected at most max_models = 1, got 3"),
        ("model_gpus = 1.5", "model_gpus: expected a whole number or a share below 1, got 1.5"),
        ("ingress = 2", "ray.ingress: unknown key; did you mean 'ingresses'?"),
    ):
        path.write_text(f"[ray]\n{wrong}\n")
        with pytest.raises(ConfigError, match=re.escape(message)):
            load_settings(path)


def test_batches_are_kept_inside_what_the_bundle_can_test():
    assert _fitted(BatchSettings(), (3, 60)).max_batch == 60
    assert _fitted(BatchSettings(), (3, 60)).least == 3
    with pytest.raises(ConfigError, match=r"batch.max_batch: expected 3 to 60, as the bundle can test, got 100"):
        _fitted(BatchSettings(max_batch=100), (3, 60))


def test_what_one_request_may_have_fits_into_the_queue():
    few = BatchSettings(max_items=100, max_bytes=10_000)
    for settings, images, upload in (
        (ServeSettings(), 256, 2**24),
        (ServeSettings(batch=few), 100, 10_000 - 64),
        (ServeSettings(batch=few, keys={"alice": KeySettings(sha256="0" * 64)}), 50, 5000 - 64),
    ):
        found = _limited(settings, 64)
        assert (found.max_images, found.max_upload) == (images, upload)
    for wrong, message in (
        ({"max_images": 101}, "limits.max_images: expected at most 100, as batch.max_items = 100 can hold, got 101"),
        (
            {"max_upload": 9999},
            "limits.max_upload: expected at most 9936, as batch.max_bytes = 10000 can hold beside an image",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            _limited(ServeSettings(batch=few, limits=LimitSettings(**wrong)), 64)
    with pytest.raises(ConfigError, match=r"batch.max_bytes: expected more than 20000, the bytes of one image, got 10000"):
        _limited(ServeSettings(batch=few), 20_000)


def test_a_body_that_does_not_end_is_given_up_before_the_grace_time_is_over():
    assert [LimitSettings(grace_seconds=grace).read_seconds for grace in (3, 30, 90)] == [2, 20, 20]
    with pytest.raises(ValueError, match="read_seconds: expected less than grace_seconds = 10, got 10"):
        LimitSettings(grace_seconds=10, read_seconds=10)


def test_keys_have_names_and_hashes_of_their_own(tmp_path):
    path = tmp_path / "serve.toml"
    for names, message in (
        (("anonymous",), "keys: expected another name for a key, got 'anonymous'"),
        (("alice", "bob"), "keys: expected a key of its own for each name, got one sha256 for 'alice' and 'bob'"),
    ):
        path.write_text("".join(f'[keys.{name}]\nsha256 = "{"0" * 64}"\n' for name in names))
        with pytest.raises(ConfigError) as caught:
            load_settings(path)
        assert str(caught.value) == f"{path}: 1 problem\n  {message}"


def test_the_documented_settings_are_the_defaults():
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    values = tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    documented = parse_settings(ServeSettings, values, "docs")
    assert documented.model_copy(update={"keys": {}}) == ServeSettings()
    assert documented.keys["alice"] == KeySettings(sha256=documented.keys["alice"].sha256)
    for section in ("batch", "limits", "ray", "review"):
        assert {*values[section]} == {*type(getattr(documented, section)).model_fields}
    assert {*values} == {*ServeSettings.model_fields}

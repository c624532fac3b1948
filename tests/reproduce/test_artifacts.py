"""What is kept for experiments, and when it is not taken."""

import pytest

from twoprong.reproduce import artifacts as module
from twoprong.reproduce.artifacts import Artifacts
from twoprong.reproduce.tables import Spec, load_experiment


@pytest.fixture
def shop(tmp_path, digits, classifier):
    return Artifacts(tmp_path, digits, load_experiment("alpha").smoke, 0, trained=lambda name: classifier)


def test_a_defence_fitted_to_another_revision_of_the_attacks_is_not_taken(shop, defense, monkeypatch):
    fitted = []

    def fit(classifier, config, features, work, bundle):
        fitted.append(bundle)
        bundle.parent.mkdir(parents=True, exist_ok=True)
        defense.save(bundle)

    monkeypatch.setattr(shop, "_fit", fit)
    spec = Spec(classifier="cnn")
    shop.defense(spec)
    shop.defense(spec)
    assert len(fitted) == 1
    monkeypatch.setattr(module, "REVISION", module.REVISION + 1)
    shop.defense(spec)
    assert len(set(fitted)) == 2


def test_attacked_batches_remember_what_they_were_made_with(shop, digits):
    spec = Spec(classifier="cnn", bare=True, measure="attacked", attack="noise", batch_size=40)
    shop.attacked(spec, shop.measured(spec), digits.test[:40])
    assert [one.torch for one in shop.origins] == [module.torch.__version__]

"""Plain lists of names say what the registries hold."""

from twoprong import names
from twoprong.attacks import ATTACKS
from twoprong.data.sources import SOURCES
from twoprong.evaluation.protocols import PROTOCOLS
from twoprong.models.zoo import MODELS


def test_every_list_is_its_registry_in_order():
    assert tuple(ATTACKS) == names.ATTACKS
    assert tuple(MODELS) == names.CLASSIFIERS
    assert tuple(PROTOCOLS) == names.PROTOCOLS
    assert tuple(SOURCES) == names.SOURCES

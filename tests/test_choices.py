import pytest

import twoprong as tp
from twoprong.choices import check_choice
from twoprong.errors import InputError


def test_a_word_that_is_not_known_is_refused_with_the_nearest():
    check_choice("norm", "l2", ("linf", "l2"))
    with pytest.raises(InputError, match=r"^norm: expected one of linf, l2, got 'Linff'; did you mean 'linf'\?$"):
        check_choice("norm", "Linff", ("linf", "l2"))
    with pytest.raises(InputError, match=r"^norm: expected one of linf, l2, got 7$"):
        check_choice("norm", 7, {"linf": 1, "l2": 2})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"norm": "linff", "eps": 0.1}, "norm: expected one of linf, l2, got 'linff'; did you mean 'linf'"),
        ({"protocol": "qick"}, "protocol: expected one of quick, paper, strong, got 'qick'; did you mean 'quick'"),
        ({"precision": "fp16"}, "precision: expected one of fp32, bf16, got 'fp16'; did you mean 'bf16'"),
    ],
)
def test_evaluate_refuses_a_wrong_word_like_the_command_line(defense, digits, keywords, message):
    with pytest.raises(InputError, match=message):
        tp.evaluate(defense, digits.test, **keywords)


def test_fit_and_attacks_refuse_a_wrong_word_too(classifier, digits):
    with pytest.raises(InputError, match="precision: expected one of fp32, bf16, got 'fp23'"):
        tp.fit(classifier, digits.train, precision="fp23")
    with pytest.raises(InputError, match="norm: expected one of linf, l2, got 'l-inf'; did you mean 'linf'"):
        tp.attacks.ATTACKS["pgd"](norm="l-inf")

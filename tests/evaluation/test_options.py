import pytest

import twoprong as tp


def test_keywords_are_fields_of_the_options_and_win_over_them(defense, digits):
    options = tp.EvaluateOptions(norm="l7", eps=1.0)
    with pytest.raises(tp.errors.InputError, match="one of linf, l2, got 'l7'"):
        tp.evaluate(defense, digits.test, options=options)
    with pytest.raises(tp.errors.InputError, match="tests 1 to 120 images, got 500"):
        tp.evaluate(defense, digits.test, options=options, norm="linf", batch_size=500)


def test_a_keyword_that_does_not_exist_is_refused_before_any_work():
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        tp.evaluate(None, None, batchsize=10)

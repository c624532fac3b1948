from twoprong.cli.output import _Lines


def test_a_log_hears_of_the_end_of_a_stage_and_now_and_then_of_its_progress(capsys):
    lines = _Lines(pause=0)
    lines("evaluate", 1, 4, "route, about 20 s left")
    lines("evaluate", 4, 4)
    patient = _Lines(pause=1e9)
    patient("evaluate", 1, 4, "nobody hears this")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "evaluate: 25% (route, about 20 s left)"
    assert said[1].startswith("evaluate: done in ")
    assert len(said) == 2

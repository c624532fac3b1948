import pytest

from twoprong import cli
from twoprong.errors import InputError


@pytest.mark.parametrize(
    ("error", "code"), [(OSError("disk full"), 2), (InputError("disk full"), 2), (SystemExit(0), 0), (SystemExit(1), 1)]
)
def test_an_error_is_one_line_and_an_exit_code_that_scripts_can_see(monkeypatch, capsys, error, code):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == ("error: disk full\n" if "disk" in str(error) else "")


def test_for_debugging_the_error_itself_comes_through(monkeypatch):
    def fail():
        raise OSError("disk full")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setenv("TWOPRONG_DEBUG", "1")
    with pytest.raises(OSError, match="disk full"):
        cli.main()

import pytest
import torch

from twoprong.errors import InputError
from twoprong.evaluation import pieces as module
from twoprong.evaluation.pieces import Pieces
from twoprong.results.part import Origin
from twoprong.storage import save_tensors


def make(calls, value=1.5):
    def piece():
        calls.append(value)
        return {"x": torch.tensor([value])}, {"value": value, "pair": (1, 2)}

    return piece


@pytest.mark.parametrize("kept", [True, False])
def test_a_piece_is_made_once_and_read_as_it_was_written(tmp_path, kept):
    store, calls = Pieces(tmp_path / "work" if kept else None, "key"), []
    first = store.piece("a/b", make(calls))
    second = store.piece("a/b", make(calls))
    assert calls == [1.5]
    assert first[1] == second[1] == {"value": 1.5, "pair": [1, 2]}
    assert torch.equal(first[0]["x"], second[0]["x"])


def test_a_resumed_run_reads_what_the_first_one_made(tmp_path):
    calls = []
    Pieces(tmp_path, "key").piece("a", make(calls))
    store = Pieces(tmp_path, "key", resume=True)
    assert store.has("a")
    assert store.piece("a", make(calls, 9.0))[1]["value"] == 1.5
    assert calls == [1.5]


def test_without_resume_an_earlier_run_is_left_alone(tmp_path):
    calls = []
    Pieces(tmp_path, "key").piece("a", make(calls))
    with pytest.raises(InputError, match="--resume, or choose another"):
        Pieces(tmp_path, "key")
    assert Pieces(tmp_path, "key", resume=True).has("a")


def test_pieces_of_another_run_are_refused_and_kept(tmp_path):
    calls = []
    Pieces(tmp_path, "key").piece("a", make(calls))
    with pytest.raises(InputError, match="other weights, images or settings"):
        Pieces(tmp_path, "another key", resume=True)
    assert Pieces(tmp_path, "key", resume=True).has("a")


def test_a_folder_that_is_not_ours_is_not_deleted(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    Pieces(tmp_path, "key")
    assert (tmp_path / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("note", ["", "{", "[]", '{"other": 1}'])
def test_a_damaged_note_is_not_taken_for_ours(tmp_path, note):
    (tmp_path / "run.json").write_text(note)
    with pytest.raises(InputError):
        Pieces(tmp_path, "key", resume=True)


def test_pieces_remember_what_they_were_made_with(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "origin", lambda: Origin(commit="before", twoprong="1", torch="2"))
    Pieces(tmp_path, "key").piece("a", make(calls))
    now = Origin(commit="after", twoprong="1", torch="2")
    monkeypatch.setattr(module, "origin", lambda: now)
    store = Pieces(tmp_path, "key", resume=True)
    assert store.piece("b", make(calls))[1].keys() == {"value", "pair"}  # it is no number of the piece's
    assert store.origins == [now]
    store.piece("a", make(calls))
    assert [one.commit for one in store.origins] == ["after", "before"]


def test_a_piece_of_an_older_version_is_of_unknown_origin(tmp_path):
    store = Pieces(tmp_path, "key")
    save_tensors(tmp_path / "a.safetensors", {}, {"value": 1})
    assert store.read("a")[1] == {"value": 1}
    assert [one.commit for one in store.origins] == [None]


def test_of_two_who_make_a_piece_at_once_the_first_counts(tmp_path):
    mine, other = (Pieces(tmp_path / "work", "key", resume=True) for _ in range(2))

    def slow():
        other.piece("shared", lambda: ({"x": torch.zeros(1)}, {}))
        return {"x": torch.ones(1)}, {}

    assert mine.piece("shared", slow)[0]["x"].item() == 0
    assert other.read("shared")[0]["x"].item() == 0

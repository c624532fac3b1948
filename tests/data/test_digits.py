import numpy as np
import torch
from sklearn import datasets

from twoprong.data.digits import load_digits


def rows(images, labels):
    """Every (pixels, label) as one row of whole numbers, sorted: a multiset."""
    table = np.concatenate([np.asarray(images).reshape(len(images), -1), np.asarray(labels)[:, None]], axis=1)
    return table[np.lexsort(table.T[::-1])]


def test_train_and_test_together_are_the_digits_of_scikit_learn():
    data, reference = load_digits(), datasets.load_digits()
    images = torch.cat([data.train.images, data.test.images])
    labels = torch.cat([data.train.labels, data.test.labels])
    assert np.array_equal(rows(images * 16, labels), rows(reference.images, reference.target))


def test_shapes_types_and_sizes():
    data = load_digits()
    assert data.train.images.shape == (1397, 1, 8, 8)
    assert data.test.images.shape == (400, 1, 8, 8)
    assert data.train.images.dtype == torch.float32
    assert data.train.labels.dtype == torch.int64
    assert (data.train.images.min(), data.train.images.max()) == (0, 1)
    assert data.classes == tuple("0123456789")


def test_the_split_does_not_depend_on_anything_drawn_before():
    first = load_digits()
    torch.manual_seed(7)
    np.random.seed(7)
    second = load_digits()
    assert torch.equal(first.test.images, second.test.images)
    assert torch.equal(first.train.labels, second.train.labels)


def test_writers_are_mixed():
    """Unshuffled, the last 400 images are those of the last writers only; mixed, the test part spans the whole file."""
    reference = {image.tobytes(): place for place, image in enumerate(datasets.load_digits().images)}
    images = (load_digits().test.images[:, 0] * 16).double().numpy()
    places = np.array([reference[image.tobytes()] for image in images])
    assert len(set(places)) == 400
    quarters = np.bincount(places * 4 // 1797, minlength=4)
    assert quarters.min() > 60  # 100 are expected in each; standard deviation below 9

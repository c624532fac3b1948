"""The two-sample statistic from Gram matrices: MMD², its variance, and the power objective J (paper, section 4)."""

import torch
from torch import Tensor

from twoprong.config import Estimator
from twoprong.errors import InputError


def mmd2(k_xx: Tensor, k_yy: Tensor, k_xy: Tensor, *, estimator: Estimator = "u", paired: bool | None = None) -> Tensor:
    """MMD² of two samples from their Gram matrices, as a scalar tensor.

    `estimator="u"` is unbiased and may be negative; `"v"` is biased, at least zero for a positive definite kernel.
    `paired` leaves the cross term's diagonal out, which makes the statistic the paper's 1/n(n-1) Σ_{i≠j} H_ij; by default
    that is done for the U-statistic on equal sizes, and the full cross mean is taken otherwise.
    """
    m, n = k_xy.shape
    if k_xx.shape != (m, m) or k_yy.shape != (n, n):
        raise InputError(
            f"mmd2: expected k_xx ({m}, {m}) and k_yy ({n}, {n}) beside k_xy ({m}, {n}), "
            f"got {tuple(k_xx.shape)} and {tuple(k_yy.shape)}"
        )
    if estimator == "v":
        return k_xx.mean() + k_yy.mean() - 2 * k_xy.mean()
    if min(m, n) < 2:
        raise InputError(f"mmd2: the U-statistic needs 2 or more of each, got {m} and {n}; use estimator='v'")
    paired = m == n if paired is None else paired
    if paired and m != n:
        raise InputError(f"mmd2: expected samples of one size with paired=True, got {m} and {n}")
    cross = off_diagonal_mean(k_xy) if paired else k_xy.mean()
    return off_diagonal_mean(k_xx) + off_diagonal_mean(k_yy) - 2 * cross


def off_diagonal_mean(k: Tensor) -> Tensor:
    """The mean over i ≠ j of a square matrix."""
    n = k.shape[0]
    return (k.sum() - k.diagonal().sum()) / (n * (n - 1))


def h_matrix(k_xx: Tensor, k_yy: Tensor, k_xy: Tensor) -> Tensor:
    """H_ij = k(x_i,x_j) + k(y_i,y_j) - k(x_i,y_j) - k(y_i,x_j), for samples of one size."""
    return k_xx + k_yy - k_xy - k_xy.T


def mmd2_variance(h: Tensor, regularisation: float = 1e-8) -> Tensor:
    """σ²_λ = 4/n³ Σ_i(Σ_j H_ij)² - 4/n⁴ (Σ_ij H_ij)² + λ (paper eq. 5), written as 4·Var_i(mean_j H_ij) + λ.

    The second form is equal, cannot fall below λ, and does not subtract two nearly equal numbers.
    """
    rows = h.mean(1)
    return 4 * (rows - rows.mean()).square().mean() + regularisation


def power_objective(k_xx: Tensor, k_yy: Tensor, k_xy: Tensor, regularisation: float = 1e-8) -> Tensor:
    """J = MMD²_u / σ_λ: what Algorithm 1 ascends, since the test's power rises with it."""
    variance = mmd2_variance(h_matrix(k_xx, k_yy, k_xy), regularisation)
    return mmd2(k_xx, k_yy, k_xy) / torch.sqrt(variance)

"""Least squares with coefficients that are not negative, and without being led astray by outliers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nonnegative_least_squares(features: Array, targets: Array) -> Array:
    """x >= 0 with the least ||features @ x - targets||.

    features [N, F], targets [N]. The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974).
    """
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    count = features.shape[1]
    few = _fewer_rows(np.column_stack((features / scale, targets)))
    scaled, targets = few[:, :count], few[:, count]
    solution = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = scaled.T @ (targets - scaled @ solution)
        gradient[free] = 0.0
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10 * np.linalg.norm(targets):
            break
        free[best] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], targets, rcond=None)[0]
            negative = free & (trial <= 0)
            if not negative.any():
                break
            # Go towards the trial until the first coefficient reaches zero, and hold that one there.
            steps = solution[negative] / np.maximum(solution[negative] - trial[negative], 1e-300)
            solution = solution + steps.min() * (trial - solution)
            free &= solution > 1e-14
            solution[~free] = 0.0
            if not free.any():
                break
        solution = trial if free.any() else solution
    unscaled: Array = solution / scale
    return unscaled


def _fewer_rows(rows: Array) -> Array:
    """As many rows as there are columns, or some more, with the same products of columns: all that least squares see.

    Rotates blocks of rows so that all but the first few of each are zero, and so on with what is left.
    """
    columns = rows.shape[1]
    block = 16 * columns
    while len(rows) > block:
        padded = np.concatenate((rows, np.zeros((-len(rows) % block, columns))))
        triangles = np.asarray(np.linalg.qr(padded.reshape(-1, block, columns), mode="r"))
        rows = triangles.reshape(-1, columns)
    return rows


def fit_relative(features: Array, targets: Array, rounds: int = 8) -> Array:
    """x >= 0 with small |features @ x / targets - 1|: its median rather than its mean square, so that a few steps that
    something else held up do not count for more than others.

    features [N, F], targets [N] > 0. Least squares, reweighted by the deviations of the round before.
    """
    relative, ones = features / targets[:, None], np.ones(len(targets))
    weights = np.ones(len(targets))
    solution = np.zeros(features.shape[1])
    for _ in range(rounds):
        roots = np.sqrt(weights)
        solution = nonnegative_least_squares(relative * roots[:, None], ones * roots)
        deviations = np.abs(relative @ solution - 1)
        weights = 1 / np.maximum(deviations, max(1e-6, float(np.median(deviations)) / 4))
    return solution

"""Write generated jets to HDF5 files, and the two lists of them: does a jet have one core or two?

A jet is its particles, the most energetic first: transverse momentum as a share of the jet's, and
distance from the jet's axis in pseudorapidity and azimuth; zeros where there are no more particles.

    python examples/jets/make_data.py FOLDER --examples 8000
"""

import argparse
import pathlib

import h5py
import numpy as np

N_PARTICLES, N_TRAIN_FILES, N_VAL_FILES = 12, 8, 2


def generate(n, random):
    labels = random.integers(0, 2, n).astype(np.int32)
    distance = np.where(labels, random.uniform(0.3, 0.9, n), 0)  # between the cores
    share = random.uniform(0.25, 0.5, n)  # of the particles that belong to the second one
    angle = random.uniform(0, 2 * np.pi, n)
    is_second = random.random((n, N_PARTICLES)) < share[:, None]
    along = distance[:, None] * (is_second - share[:, None])  # the axis is in the middle
    spread = random.gamma(2, 0.07, (2, n, N_PARTICLES)) * random.choice(
        (-1, 1), (2, n, N_PARTICLES)
    )
    momentum = -np.sort(-random.exponential(1, (n, N_PARTICLES)))
    momentum *= np.arange(N_PARTICLES) < random.integers(6, N_PARTICLES + 1, n)[:, None]
    momentum /= momentum.sum(1, keepdims=True)
    eta = along * np.cos(angle)[:, None] + spread[0]
    phi = along * np.sin(angle)[:, None] + spread[1]
    jets = np.stack([momentum, eta * (momentum > 0), phi * (momentum > 0)], 2)
    return jets.astype(np.float32), labels


def write(folder, name, n_files, n_examples, random):
    paths = [folder / f"{name}-{number}.h5" for number in range(n_files)]
    for path in paths:
        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = generate(n_examples // n_files, random)
    (folder / f"{name}.txt").write_text("".join(f"{path.resolve()}\n" for path in paths))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--examples", type=int, default=8000, help="for training (%(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    write(options.folder, "train", N_TRAIN_FILES, options.examples, random)
    write(options.folder, "val", N_VAL_FILES, options.examples // 5, random)


if __name__ == "__main__":
    main()

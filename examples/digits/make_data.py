"""Write scikit-learn's handwritten digits to HDF5 files, and the two lists of them.

python examples/digits/make_data.py FOLDER
"""

import argparse
import pathlib

import h5py
import numpy as np
from sklearn.datasets import load_digits

N_TRAIN_FILES, N_VAL_FILES, VAL_SHARE = 8, 2, 0.2


def write(folder, name, n_files, features, labels):
    paths = [folder / f"{name}-{number}.h5" for number in range(n_files)]
    parts = np.array_split(np.arange(len(labels)), n_files)
    for path, part in zip(paths, parts, strict=True):
        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = features[part], labels[part]
    (folder / f"{name}.txt").write_text("".join(f"{path.resolve()}\n" for path in paths))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    n_val = int(VAL_SHARE * len(labels))
    write(folder, "val", N_VAL_FILES, images[order[:n_val]], labels[order[:n_val]])
    write(folder, "train", N_TRAIN_FILES, images[order[n_val:]], labels[order[n_val:]])


if __name__ == "__main__":
    main()

"""All metadata is in setup.cfg; whether Chainer comes with a plain install is decided here.

Chainer builds and runs only with a setuptools before 74, beside which PyTorch cannot be installed.
So it is required where such a one builds this package: ``pip install --build-constraint
requirements/build.txt .`` brings Chainer, and ``pip install .[torch]`` does not.

Where there is no compiler, the one module in C is left out: see docs/decisions.md.
"""

import configparser

import setuptools

BULK = setuptools.Extension(
    "overlapiter.origins._bulk",
    ["overlapiter/origins/_bulk.c"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    optional=True,
)

if int(setuptools.__version__.split(".")[0]) < 74:
    config = configparser.ConfigParser(interpolation=None)
    config.read("setup.cfg")
    plain, chainer = config["options"], config["options.extras_require"]["chainer"]
    setuptools.setup(install_requires=plain["install_requires"] + chainer, ext_modules=[BULK])
else:
    setuptools.setup(ext_modules=[BULK])

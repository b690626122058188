"""All metadata is in setup.cfg; whether Chainer comes with a plain install is decided here.

Chainer builds and runs only with a setuptools before 74, beside which PyTorch cannot be installed.
So it is required where such a one builds this package: ``pip install --build-constraint
requirements/build.txt .`` brings Chainer, and ``pip install .[torch]`` does not.

Where there is no compiler, the modules in C are left out: see docs/decisions.md.
"""

import configparser
import sys

import setuptools

#: From 3.11 on the stable interface has buffers, and one build serves all versions.
STABLE = [("Py_LIMITED_API", "0x030B0000")] if sys.version_info >= (3, 11) else []

MODULES = [
    setuptools.Extension(
        f"overlapiter.{package}.{name}",
        [f"overlapiter/{package}/{name}.c"],
        define_macros=STABLE,
        extra_compile_args=["-O3"],  # some Pythons are compiled without, and then so are modules
        py_limited_api=bool(STABLE),
        optional=True,
    )
    for package, name in [("origins", "_bulk"), ("sharedmem", "_planes")]
]

if int(setuptools.__version__.split(".")[0]) < 74:
    config = configparser.ConfigParser(interpolation=None)
    config.read("setup.cfg")
    plain, chainer = config["options"], config["options.extras_require"]["chainer"]
    setuptools.setup(install_requires=plain["install_requires"] + chainer, ext_modules=MODULES)
else:
    setuptools.setup(ext_modules=MODULES)

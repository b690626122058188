"""Set up this checkout and run its commands.

    python3 dev.py bench [ARGUMENT ...]   a first benchmark in a minute; --list names all
    python3 dev.py test [ARGUMENT ...]    run pytest
    python3 dev.py lint                   run ruff and mypy
    python3 dev.py setup                  only set up

They use the best Python that there is: 3.11 or 3.10, which Chainer needs, or else one from 3.12 on,
where the benchmark compares PyTorch's loaders. Two options, right behind the command, choose
another environment:

    --torch            with PyTorch, for the CPU (2 GB), and without Chainer: the two exclude
                       each other
    --without-chainer  the newest Python that there is, without Chainer

The first command creates .venv, or .venv-torch and so on; a later one does so again when the
requirements, the place of the checkout or the version of Python have changed. Everything stays in
the checkout (.venv*, .cache).
"""

import configparser
import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CACHE = ROOT / ".cache"

THIS = sys.version_info[:2]
# The best one first; Chainer runs under two of them, of which this one is as good as the other.
VERSIONS = [
    *sorted([(3, 11), (3, 10)], key=lambda version: version != THIS),
    (3, 13),
    (3, 12),
    (3, 14),
]
PIP = "pip>=25.3,<27"  # 25.3 brings --build-constraint
BUILD_CONSTRAINTS = "requirements/build.txt"  # those of Chainer
TORCH = "torch==2.13.0+cpu"  # without CUDA, which is gigabytes
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # asked where pip's own indexes have it not

# Prints where a Python is and which, or fails if it cannot make .venv.
PROBE = """
import ensurepip, sys, venv
print(sys.executable, sys.version, sep="\\n")
sys.exit("%d.%d" % sys.version_info[:2] != "{}.{}")
"""

# What the Python in .venv runs for each command.
COMMANDS = {
    "bench": [["-m", "bench"]],
    # Many tests wait; a file of tests stays together, for what its tests share.
    "test": [["-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]],
    "lint": [["-m", "ruff", "check"], ["-m", "ruff", "format", "--check"], ["-m", "mypy"]],
    "setup": [],
}


class SetupError(Exception):
    """The message says what the user can do."""


def say(text):
    """Print one line at once."""
    print("dev.py: " + text, flush=True)


def find_python(versions):
    """Return path and version of the first of these versions that is there, on PATH or of pyenv."""
    this = getattr(sys, "_base_executable", None) or sys.executable  # not that of .venv
    pyenv = Path(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")))
    for wanted in versions:
        name = "python{}.{}".format(*wanted)
        others = [os.path.join(folder, name) for folder in os.get_exec_path()]
        others += map(str, pyenv.glob("versions/*/bin/" + name))
        for path in [this] * (wanted == THIS) + list(filter(os.path.exists, others)):
            try:
                probe = [path, "-I", "-c", PROBE.format(*wanted)]
                found = subprocess.check_output(probe, stderr=subprocess.DEVNULL)
                return found.decode().split("\n", 1)
            except (OSError, subprocess.CalledProcessError):
                pass  # no ensurepip, or a launcher without a Python behind it
    version = "{}.{}".format(*THIS)
    if THIS in versions:
        raise SetupError(
            "this Python lacks venv or ensurepip; install them (Debian, Ubuntu: "
            "apt install python{}-venv) and run the same command again".format(version)
        )
    raise SetupError(
        "needs Python 3.10 to 3.14 with venv, at best 3.11, but this is Python {} and PATH has no "
        "other; install one, or run /path/to/python3.11 dev.py".format(version)
    )


def has_chainer(version):
    """Say whether Chainer can be installed for this version of Python, as sys.version has it."""
    return version.startswith(("3.10.", "3.11."))


class Environment:
    """A virtual environment in the checkout.

    Its ``versions`` are those of Python, the best one first; ``options`` tell pip what to install.
    """

    def __init__(self, name, versions, options):
        self.name = name
        self.versions = versions
        self.options = options
        self.wants_chainer = BUILD_CONSTRAINTS in options
        self.python = ROOT / name / "bin" / "python"
        self.stamp = ROOT / name / "set-up-for"  # written last: without it it is not complete

    def variables(self):
        """Return the environment of the processes: the user's own, with this one active."""
        env = dict(os.environ, VIRTUAL_ENV=str(ROOT / self.name), PIP_USER="0", PIP_NO_INPUT="1")
        env["PATH"] = os.pathsep.join([str(self.python.parent), *os.get_exec_path()])
        env.setdefault("PIP_CACHE_DIR", str(CACHE / "pip"))
        env.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
        # The packages of another installation; and the tests start Python so often that to compile
        # each module every time would take a minute.
        for name in ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        return env

    def is_set_up(self, wanted):
        """Say whether it is complete and made for this fingerprint."""
        is_there = self.python.exists() and self.stamp.exists()
        return is_there and self.stamp.read_text() == wanted

    def set_up(self):
        """Make it complete and up to date; of several processes, one does it, the others wait."""
        python, version = find_python(self.versions)
        number = version.split()[0]
        if self.wants_chainer and not has_chainer(version):
            say(
                "PATH has no Python 3.11 or 3.10, so there is no Chainer: on Python {} what needs "
                "it is left out".format(number)
            )
        wanted = self.fingerprint(version)
        if self.is_set_up(wanted):
            return
        CACHE.mkdir(exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.is_set_up(wanted):
                return
            if self.stamp.exists():
                self.stamp.unlink()
            say("creating {} with Python {}".format(self.name, number))
            self.run_logged(python, "-m", "venv", "--clear", ROOT / self.name)
            say("installing overlapiter and its tools (about a minute the first time)")
            pip = (self.python, "-m", "pip", "install")
            self.run_logged(*pip, PIP)
            constraints = ("--constraint", "requirements/constraints.txt")
            try:
                self.run_logged(*pip, *constraints, *self.options)
            except SetupError:
                if TORCH not in self.options:
                    raise
                more = ("--extra-index-url", TORCH_INDEX)
                self.run_logged(*pip, *constraints, *self.options, *more)
            self.stamp.write_text(wanted)

    def fingerprint(self, version):
        """Return a digest of everything that the set-up depends on."""
        config = configparser.ConfigParser(interpolation=None)
        config.read(str(ROOT / "setup.cfg"))
        options = [(name, config.items(name)) for name in config if name.startswith("options")]
        paths = [
            ROOT / "setup.py",
            *sorted((ROOT / "overlapiter").rglob("*.c")),
            *sorted(ROOT.glob("requirements/*.txt")),
        ]
        files = [path.read_text() for path in paths]
        parts = [version, str(ROOT), PIP, self.options, options, files]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def run_logged(self, *command):
        """Run one step of the set-up; if it fails, show the end of its log."""
        path = CACHE / "setup.log"
        with path.open("w") as log:
            code = subprocess.call(
                [str(word) for word in command],
                cwd=str(ROOT),
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if code:
            end = "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            raise SetupError(
                "the set-up failed; its last lines ({}):\n{}\ndev.py: check the network and pip's "
                "settings (index, proxy, disk space), then run the same command again".format(
                    path, end
                )
            )

    def run(self, command, arguments):
        """Run a command; return its exit code, or become it where it is a single process."""
        commands = [[str(self.python), *words, *arguments] for words in COMMANDS[command]]
        os.chdir(str(ROOT))
        if len(commands) == 1:  # so that signals and the exit code are the command's own
            os.execve(commands[0][0], commands[0], self.variables())
        failed = False
        for words in commands:
            say(" ".join(words[2:]))
            failed |= subprocess.call(words, env=self.variables()) != 0
        return int(failed)


# By the option that asks for it. Where Chainer's build is told its setuptools, Chainer comes along.
ENVIRONMENTS = {
    "": Environment(
        ".venv", VERSIONS, ["--build-constraint", BUILD_CONSTRAINTS, "--editable", ".[dev]"]
    ),
    "--torch": Environment(".venv-torch", VERSIONS, [TORCH, "--editable", ".[dev,torch]"]),
    "--without-chainer": Environment(
        ".venv-without-chainer", sorted(VERSIONS, reverse=True), ["--editable", ".[dev]"]
    ),
}


def main(arguments):
    """Run what the command line asks for and return the exit code."""
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    command, arguments = arguments[0], arguments[1:]
    option = arguments.pop(0) if arguments and arguments[0] in ENVIRONMENTS else ""
    try:
        if command == "bench" and not option and not has_chainer(find_python(VERSIONS)[1]):
            option = "--torch"  # one of the two is what the loaders are compared with
        ENVIRONMENTS[option].set_up()
        return ENVIRONMENTS[option].run(command, arguments)
    except SetupError as error:
        print("dev.py: {}".format(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dev.py: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

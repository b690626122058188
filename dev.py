"""Set up this checkout and run its commands.

    python3 dev.py bench [ARGUMENT ...]   a first benchmark in a minute; --list names all
    python3 dev.py test [ARGUMENT ...]    run pytest
    python3 dev.py lint                   run ruff and mypy
    python3 dev.py setup                  only set up

The first command creates .venv; a later one does so again when the requirements, the place of the
checkout or the version of Python have changed. Everything stays in the checkout (.venv, .cache).
"""

import configparser
import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up-for"  # written last: without it the set-up is not complete

VERSIONS = ((3, 11), (3, 10))  # the best one first
PIP = "pip>=25.3,<27"  # 25.3 brings --build-constraint

# Prints where a Python is and which, or fails if it cannot make .venv.
PROBE = """
import ensurepip, sys, venv
print(sys.executable, sys.version, sep="\\n")
sys.exit(sys.version_info[:2] not in {})
""".format(VERSIONS)

# What the Python in .venv runs for each command.
COMMANDS = {
    "bench": [["-m", "bench"]],
    "test": [["-m", "pytest"]],
    "lint": [["-m", "ruff", "check"], ["-m", "ruff", "format", "--check"], ["-m", "mypy"]],
    "setup": [],
}


class SetupError(Exception):
    """The message says what the user can do."""


def say(text):
    """Print one line at once."""
    print("dev.py: " + text, flush=True)


def find_python():
    """Return path and version of this Python or, if it does not do, of another on PATH."""
    this = getattr(sys, "_base_executable", None) or sys.executable  # not that of .venv
    folders = os.get_exec_path()
    others = [os.path.join(f, "python{}.{}".format(*v)) for v in VERSIONS for f in folders]
    for path in [this, *filter(os.path.exists, others)]:
        try:
            probe = subprocess.check_output([path, "-I", "-c", PROBE], stderr=subprocess.DEVNULL)
            return probe.decode().split("\n", 1)
        except (OSError, subprocess.CalledProcessError):
            pass  # too old or new, no ensurepip, or a launcher without a Python behind it
    version = "{}.{}".format(*sys.version_info)
    if sys.version_info[:2] in VERSIONS:
        raise SetupError(
            "this Python lacks venv or ensurepip; install them (Debian, Ubuntu: "
            "apt install python{}-venv) and run the same command again".format(version)
        )
    raise SetupError(
        "needs Python 3.11 or 3.10 with venv, but this is Python {} and PATH has no other; "
        "install one, or run /path/to/python3.11 dev.py".format(version)
    )


def environment():
    """Return the environment of the processes: the user's own, with .venv active."""
    env = dict(os.environ, VIRTUAL_ENV=str(VENV), PIP_USER="0", PIP_NO_INPUT="1")
    env["PATH"] = os.pathsep.join([str(PYTHON.parent), *os.get_exec_path()])
    env.setdefault("PIP_CACHE_DIR", str(CACHE / "pip"))
    env.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
    # The packages of another installation; and the tests start Python so often that to compile
    # each module every time would take a minute.
    for name in ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    return env


def fingerprint(version):
    """Return a digest of everything that the set-up depends on."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(str(ROOT / "setup.cfg"))
    options = [(name, config.items(name)) for name in config if name.startswith("options")]
    files = [path.read_text() for path in sorted(ROOT.glob("requirements/*.txt"))]
    return hashlib.sha256(repr([version, str(ROOT), PIP, options, files]).encode()).hexdigest()


def is_set_up(wanted):
    """Say whether .venv is complete and made for this fingerprint."""
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted


def run_logged(*command):
    """Run one step of the set-up; if it fails, show the end of its log."""
    with LOG.open("w") as log:
        code = subprocess.call(
            [str(word) for word in command],
            cwd=str(ROOT),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if code:
        end = "\n".join(LOG.read_text(errors="replace").splitlines()[-15:])
        raise SetupError(
            "the set-up failed; its last lines ({}):\n{}\ndev.py: check the network and pip's "
            "settings (index, proxy, disk space), then run the same command again".format(LOG, end)
        )


def set_up():
    """Make .venv complete and up to date; of several processes, one does it and the others wait."""
    python, version = find_python()
    wanted = fingerprint(version)
    if is_set_up(wanted):
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_set_up(wanted):
            return
        if STAMP.exists():
            STAMP.unlink()
        say("creating .venv with Python " + version.split()[0])
        run_logged(python, "-m", "venv", "--clear", VENV)
        say("installing overlapiter and its tools (about a minute the first time)")
        pip = (PYTHON, "-m", "pip", "install")
        constraints = (
            *("--build-constraint", "requirements/build.txt"),
            *("--constraint", "requirements/constraints.txt"),
        )
        run_logged(*pip, PIP)
        run_logged(*pip, *constraints, "--editable", ".[dev]")
        STAMP.write_text(wanted)


def run(name, arguments):
    """Run a command; return its exit code, or become it where it is a single process."""
    commands = [[str(PYTHON), *words, *arguments] for words in COMMANDS[name]]
    os.chdir(str(ROOT))
    if len(commands) == 1:  # so that signals and the exit code are the command's own
        os.execve(commands[0][0], commands[0], environment())
    failed = False
    for words in commands:
        say(" ".join(words[2:]))
        failed |= subprocess.call(words, env=environment()) != 0
    return int(failed)


def main(arguments):
    """Run what the command line asks for and return the exit code."""
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        set_up()
        return run(arguments[0], arguments[1:])
    except SetupError as error:
        print("dev.py: {}".format(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dev.py: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

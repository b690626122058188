"""The set-up of a checkout."""

from __future__ import annotations

import dev


def test_the_set_up_depends_on_sources_and_requirements_and_on_no_other_folder(
    tmp_path, monkeypatch
):
    for name in ("setup.py", "setup.cfg", "overlapiter/a/b.c", "requirements/build.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    environment = dev.ENVIRONMENTS[""]
    before = environment.fingerprint("3.11.7")
    (tmp_path / ".venv/overlapiter").mkdir(parents=True)
    (tmp_path / ".venv/overlapiter/c.c").touch()
    assert environment.fingerprint("3.11.7") == before
    (tmp_path / "overlapiter/a/b.c").write_text("int b;")
    assert environment.fingerprint("3.11.7") != before

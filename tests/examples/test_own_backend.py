"""The example backend as a third party's package: installed, checked, and served with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transferqueue as tq
from transferqueue import errors

ROOT = Path(__file__).resolve().parents[2]

ENTRY_POINTS = """\
[transferqueue.backends]
memfile = own_backend:MemfileBackend
gone = own_backend:Gone
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an installer would have made of the package, on PYTHONPATH."""
    shutil.copy(ROOT / "examples" / "own_backend.py", tmp_path)
    info = tmp_path / "own_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_it_is_short() -> None:
    text = (ROOT / "examples" / "own_backend.py").read_text()
    code = text[text.index("from __future__") :].splitlines()
    assert len([line for line in code if line.strip()]) <= 60


def test_it_keeps_the_contract_as_its_own_text_says(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "own_backend.py"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "keeps the contract" in done.stdout


@pytest.mark.usefixtures("installed")
def test_a_service_finds_it_by_its_entry_point_and_keeps_rows_in_it() -> None:
    with (
        tq.serve(
            shards=2,
            budget_bytes=16 << 20,
            backend="memfile",
            backend_options={"name": "mine"},
        ) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        large = torch.arange(1 << 20).reshape(64, -1)
        handle = client.put({"x": large, "s": [str(i) for i in range(64)]})
        got = client.get(handle[[63, 0]])
        assert torch.equal(got["x"], large[[63, 0]])
        assert torch.equal(client.get(handle)["x"], large)
        assert client.get_columns(handle[:2])["s"].tolist() == ["0", "1"]
        files = [
            os.readlink(entry)
            for pid in service.pids.values()
            for entry in Path(f"/proc/{pid}/fd").iterdir()
        ]
        assert sum("memfd:mine" in name for name in files) == 2
        client.clear(handle)
        with pytest.raises(errors.StorageFull):
            client.put({"x": torch.zeros(12 << 20)}, timeout_s=0.3)
        client.put({"x": large})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "gone"}, r"backend 'gone' \(own_backend:Gone\) cannot be used"),
        ({"backend": "memfil"}, "installed: .*did you mean 'memfile'"),
        ({"backend": "memfile", "backend_options": {"nam": 1}}, r"has no options \['nam'\]"),
        ({"backend": "memfile", "backend_options": {"f": print}}, "backend_options"),
    ],
)
def test_what_cannot_be_used_is_named_at_the_start(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        tq.serve(budget_bytes=16 << 20, **settings)  # type: ignore[arg-type]

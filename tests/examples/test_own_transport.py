"""The example transport as a third party's package: installed, checked, and moved bytes by."""

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
[transferqueue.transports]
folder = own_transport:FolderTransport
gone = own_transport:Gone
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an installer would have made of the package, here and in child processes."""
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(ROOT / "examples" / "own_transport.py", package)
    info = package / "own_transport-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-transport\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(package))
    return package


def test_it_keeps_the_contract_as_its_own_text_says(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "own_transport.py"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "keeps the contract" in done.stdout


@pytest.mark.usefixtures("installed")
def test_a_service_and_its_clients_find_it_by_its_entry_point(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with (
        tq.serve(
            shards=2, budget_bytes=32 << 20, transports={"folder": {"path": str(shared)}}
        ) as service,
        tq.connect(service.address, transport="folder", timeout_s=20) as client,
    ):
        assert {link["way"] for link in client.links()} == {"folder"}
        large = torch.arange(1 << 20).reshape(64, -1)
        handle = client.put({"x": large, "s": [str(i) for i in range(64)]})
        assert torch.equal(client.get(handle)["x"], large)
        assert not list(shared.glob("*/*"))
        shutil.rmtree(next(shared.iterdir()))
        with pytest.raises(errors.TransportFailed, match="folder"):
            for _ in range(2):  # they are taken in turn
                client.put({"x": large})
        with tq.connect(service.address, timeout_s=20) as mapping:
            assert torch.equal(mapping.get(handle)["x"], large)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("transports", "message"),
    [
        ({"gone": {}}, r"transport 'gone' \(own_transport:Gone\) cannot be used"),
        ({"folde": {}}, "installed: .*did you mean 'folder'"),
        ({"folder": {}}, "needs the option path"),
        ({"folder": {"f": print}}, "JSON"),
    ],
)
def test_what_cannot_be_used_is_named_at_the_start(
    transports: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        tq.serve(budget_bytes=16 << 20, transports=transports)

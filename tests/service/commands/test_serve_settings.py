"""What the command line can say of a service: all that ``tq.serve()`` can, by flags and by file."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from transferqueue.errors import ConfigError
from transferqueue.service.cli import main
from transferqueue.service.commands.serve import _settings
from transferqueue.service.commands.serve_settings import FLAGS

ROOT = Path(__file__).resolve().parents[3]
PARAMETERS = inspect.signature(tq.serve).parameters


def settings(*words: str, joins: bool = False) -> dict[str, object]:
    """The arguments that these words make."""
    context = main.commands["serve"].make_context("serve", list(words))
    own = {"join", "service_key", "metrics_port", "page_port", "drain_s"}
    flags = {name: value for name, value in context.params.items() if name not in own}
    return _settings(flags, flags.pop("config"), joins=joins)


def test_the_command_line_and_the_function_take_the_same() -> None:
    assert set(FLAGS) == set(PARAMETERS) - {"in_process"}
    options = {
        option
        for parameter in main.commands["serve"].params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    assert set(FLAGS.values()) <= options
    others = {
        "--config", "--join", "--service-key", "--metrics-port", "--page-port", "--drain-s",
    }  # fmt: skip
    assert options - set(FLAGS.values()) == others


def test_without_flags_everything_is_as_the_function_has_it() -> None:
    assert settings() == {}


def test_every_flag_arrives_as_its_argument(tmp_path: Path) -> None:
    given = settings(
        *("--shards", "3", "--budget-mib", "16", "--backend", "heap"),
        *("--backend-option", "segment_bytes=4096", "--backend-option", "name=a b"),
        *("--arena-dir", "/a", "--also", "disk:budget_mib=64,arena_dir=/d,sync=seal"),
        *("--also", "far:backend=mooncake,budget_mib=1.5,master=h:50051"),
        *("--transport", "sockets", "--transport", "mine:port=7,on=true"),
        *("--spill-dir", "/s", "--spill-mib", "8", "--spill-high", "0.8", "--spill-low", "0.5"),
        *("--host", "127.0.0.1", "--no-encryption", "--read-key", "all", "--prefault"),
        *("--read-key", "some=train,val", "--replicas", "2", "--copy-mib-per-s", "2"),
        *("--takeover-s", "30", "--guard-silence-s", "2.5"),
        *("--no-restart", "--sampler", "m:C", "--start-timeout-s", "5", "--restore", "/r"),
        *("--tracing", "chrome:/t"),
    )
    assert given == {
        "shards": 3,
        "budget_bytes": 16 << 20,
        "backend": "heap",
        "backend_options": {"segment_bytes": 4096, "name": "a b"},
        "arena_dir": "/a",
        "backends": {
            "disk": {"budget_bytes": 64 << 20, "arena_dir": "/d", "options": {"sync": "seal"}},
            "far": {
                "backend": "mooncake",
                "budget_bytes": 3 << 19,
                "options": {"master": "h:50051"},
            },
        },
        "transports": {"sockets": {}, "mine": {"port": 7, "on": True}},
        "spill_dir": "/s",
        "spill_bytes": 8 << 20,
        "spill_high": 0.8,
        "spill_low": 0.5,
        "host": "127.0.0.1",
        "encrypt": False,
        "read_keys": {"all": None, "some": ["train", "val"]},
        "prefault": True,
        "replicas": 2,
        "copy_bytes_per_s": 2 << 20,
        "takeover_s": 30.0,
        "guard_silence_s": 2.5,
        "restart": False,
        "samplers": ("m:C",),
        "tracing": "chrome:/t",
        "start_timeout_s": 5.0,
        "restore": "/r",
    }
    assert set(given) == set(FLAGS)


def test_a_zero_is_said_too() -> None:
    words = ("--shards", "0", "--spill-low", "0", "--copy-mib-per-s", "0")
    assert settings(*words) == {"shards": 0, "spill_low": 0.0, "copy_bytes_per_s": 0}


def test_a_file_says_it_by_the_names_of_the_arguments_and_flags_count_more(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text(
        "shards = 2\nencrypt = false\n[backends.disk]\nbudget_bytes = 1048576\n"
        '[read_keys]\nall = "*"\nsome = ["train"]\n'
    )
    flags = ["--shards", "4", "--also", "cold:backend=disk,budget_mib=2"]
    assert settings("--config", str(path), *flags) == {
        "shards": 4,
        "encrypt": False,
        "backends": {
            "disk": {"budget_bytes": 1048576},
            "cold": {"backend": "disk", "budget_bytes": 2 << 20},
        },
        "read_keys": {"all": None, "some": ["train"]},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shard = 2", "no setting 'shard'; did you mean 'shards'"),
        ("in_process = true", "no setting 'in_process'"),
        ("shards = ", "service.toml"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        settings("--config", str(path))


@pytest.mark.parametrize("words", [["--replicas", "2"], ["--restore", "/r"], ["--no-encryption"]])
def test_what_is_of_a_whole_service_is_refused_for_shards_that_join(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{words[0]} is not for shards that --join"):
        settings(*words, joins=True)
    assert settings("--backend", "heap", joins=True) == {"backend": "heap"}


def test_a_wrong_pair_is_named() -> None:
    refused = CliRunner().invoke(main, ["serve", "--backend-option", "segment_bytes"])
    assert refused.exit_code != 0
    assert "KEY=VALUE expected, got 'segment_bytes'" in refused.output


def test_a_service_of_a_file_keeps_a_field_where_its_partition_says(tmp_path: Path) -> None:
    path, folder = tmp_path / "service.toml", tmp_path / "disk"
    folder.mkdir()
    path.write_text(
        f'budget_bytes = 16777216\n[backends.cold]\nbackend = "disk"\nbudget_bytes = 8388608\n'
        f'arena_dir = "{folder}"\n'
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "transferqueue.service.cli", "serve", "--config", str(path),
         "--also", f"disk:budget_mib=8,arena_dir={folder}"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[1]
        with tq.connect(address) as client:
            client.create_partition("images", backend={"pixels": "disk", "*": "shm"})
            data = torch.arange(1 << 17)
            handle = client.put({"pixels": data[None], "label": [1]}, partition="images")
            assert torch.equal(client.get(handle)["pixels"][0], data)
            assert client.held()["images"]["backends"]["pixels"]["disk"] >= data.nbytes
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
        server.stdout.close()

"""Marks what runs only where there is a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_cuda = pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no CUDA device here")

"""`ringfeed doctor` and interpreters without packages: pip runs what it prints, with wheels at hand."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

import ringfeed
from tests.support.feeds.patient import Patient, found
from tests.support.makers.wheel import make_wheel_of_installed, make_wheel_of_ringfeed

MakePatient = Callable[..., Patient]
# The system's, which these tests have their environment from: it can import their NumPy.
PYTHON = sys._base_executable  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    make_wheel_of_installed(directory, "numpy")
    make_wheel_of_ringfeed(directory, ringfeed.__version__)
    return directory


@pytest.fixture
def patient(wheels: Path, make_patient: MakePatient) -> Patient:
    """Its pip has these wheels alone, and no settings of this machine."""
    patient = make_patient(
        environment={
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        }
    )
    patient.do("unset PYTHONPATH VIRTUAL_ENV PIP_BREAK_SYSTEM_PACKAGES PIP_USER PIP_CONSTRAINT")
    return patient


def test_an_environment_without_packages(patient: Patient) -> None:
    """Each command brings what it names; the second finding is seen after the first is mended."""
    patient.do(f"{PYTHON} -m venv own && export RINGFEED_PYTHON=$PWD/own/bin/python")
    for lacks, wheel in (
        ("NumPy", "'numpy>=2.1'"),
        ("ringfeed", f"ringfeed=={ringfeed.__version__}"),
    ):
        (finding,) = found(patient.doctor(), "python", f"cannot import {lacks}")
        assert finding["mend"] == f"{patient.directory}/own/bin/python -m pip install {wheel}"
        patient.mend(finding["mend"])
    assert not found(patient.doctor(), "python", ".")


def test_a_package_of_another_version(patient: Patient, tmp_path: Path) -> None:
    make_wheel_of_ringfeed(tmp_path, "0.0.9")
    patient.do(f"{PYTHON} -m venv own && export RINGFEED_PYTHON=$PWD/own/bin/python")
    patient.do(f"own/bin/pip install --find-links {tmp_path} ringfeed==0.0.9")
    (finding,) = found(patient.doctor(), "python", r"is version 0\.0\.9")
    patient.mend(finding["mend"])
    assert not found(patient.doctor(), "python", ".")


def test_an_interpreter_of_the_system_keeps_its_packages(patient: Patient) -> None:
    """pip would refuse to install for it (PEP 668), so an environment is made."""
    patient.do(f"test -e {sysconfig.get_path('stdlib')}/EXTERNALLY-MANAGED  # as Debian marks it")
    patient.do(f"export RINGFEED_PYTHON={PYTHON}")
    (finding,) = found(patient.doctor(), "python", f"{PYTHON} cannot import")
    assert "the system keeps the packages" in finding["advice"]
    patient.mend(finding["mend"])
    assert not found(patient.doctor(), "python", ".")
    assert patient.do("echo $RINGFEED_PYTHON").startswith(str(patient.directory))

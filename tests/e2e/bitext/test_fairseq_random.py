"""Drawn configurations beside the reference: a few of those that fairseq_random.py does at
length.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.oracles import fairseq_random

# Of each kind of case some, among them (see fairseq_random.draw_config): validation of one
# direction and of several, batches that are cut once, rows that are sorted once, states beyond an
# epoch.
NUMBERS = [*range(1, 17), 106, 138, 290]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_drawn_case(tmp_path: Path, number: int) -> None:
    fairseq_random.check(number, tmp_path)

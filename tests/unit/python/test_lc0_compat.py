"""What ringfeed.lc0_compat reads out of converted configurations, without a feed."""

from __future__ import annotations

from typing import Any

import pytest

from ringfeed import _control, lc0_compat

CONFIG = """feed: "x"

# stages {
stages {
  name: "a-pool"
  shuffling_chunk_pool {
    input: "loader"
  }
}

stages {
  name: "b"
  shuffling_chunk_pool {
  }
}

stages {
  name: "tensors"
  tensor_generator {
    input: "b"
  }
}
"""
OUTPUTS = """
feed_output {
  slots: 9
  stage: "tensors"
}

feed_output {
  alias: "validation"
  stage: "v"
}
"""


class Message:
    """A message without a descriptor."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.data


@pytest.fixture
def make_loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(text: str) -> lc0_compat.DataLoader:
        monkeypatch.setattr(lc0_compat, "_convert", lambda given: (text, ["a note"]))
        return lc0_compat.DataLoader(b"")

    return make


def test_outputs_by_alias(make_loader: Any) -> None:
    assert make_loader(CONFIG).aliases == [""]
    loader = make_loader(CONFIG + OUTPUTS)
    assert loader.aliases == ["", "validation"]
    with pytest.raises(RuntimeError, match='no output "test": there are "", "validation"'):
        loader.get_next("test")


def test_an_anchor_goes_into_every_pool(make_loader: Any) -> None:
    loader = make_loader(CONFIG)
    pool_request = _control.bytes_field(2, 'file "1".tar'.encode())
    answers = loader.send_control_message(Message(_control.bytes_field(1, pool_request)))
    assert [name for name, _ in answers] == ["a-pool", "b"]
    ((number, answer),) = _control.fields(answers[0][1])
    assert isinstance(answer, bytes)
    assert number == 1 and dict(_control.fields(answer)) == {1: b'file "1".tar', 2: 0}
    text = lc0_compat._with_anchor(loader.config, 'file "1".tar')
    assert text.count('  shuffling_chunk_pool {\n    chunk_anchor: "file \\"1\\".tar"\n') == 2
    # A reset before there is anything, and a query.
    for request in (_control.number_field(1, 1), b""):
        answers = loader.send_control_message(_control.bytes_field(1, request))
        assert answers[1] == ("b", _control.bytes_field(1, b"\x0a\x00\x10\x00"))


def test_what_is_no_message_is_refused(make_loader: Any) -> None:
    with pytest.raises(TypeError, match="not a int"):
        make_loader(CONFIG).send_control_message(3)


def test_stages_are_not_added_after_a_stop(make_loader: Any) -> None:
    loader = make_loader(CONFIG)
    loader.stop()
    with pytest.raises(RuntimeError, match="before start"):
        loader.add_stages(b"")
    with pytest.raises(RuntimeError, match="started already"):
        loader.start()
